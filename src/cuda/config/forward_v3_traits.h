// A row of the table as types and constants, for one dtype.
#pragma once

#include "cuda/config/forward_v3.h"
#include "cuda/tile/swizzle.h"
#include "flashwok/tensor.h"

namespace flashwok::cuda {

template <DType kType_, ForwardV3Config kConfig, bool kSoftcap_>
struct ForwardV3Traits {
  static constexpr DType kType = kType_;
  static constexpr bool kSoftcap = kSoftcap_;
  static constexpr bool kTimeStamps = false;
  static constexpr int kConsumers = kConfig.consumers;
  static constexpr int kTileKV = kConfig.tile_kv;
  static constexpr int kTileQ = kConfig.tile_q();
  static constexpr int kHeadDim = kConfig.head_dim;
  static constexpr int kHeadDimV = kConfig.head_dim_v;
  static constexpr int kStages = kConfig.stages;
  static constexpr int kQStages = kConfig.q_stages;
  static constexpr bool kPingPong = kConfig.ping_pong;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kConsumerWarps = 4 * kConsumers;
  // Of a thread, once the roles are taken: they share out what the launch was given.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : kConsumers == 3 ? 160 : 112;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * kLaunchRegisters);

  using QTile = SwizzledTile<64, kHeadDim>;        // of one consumer
  using KTile = SwizzledTile<kTileKV, kHeadDim>;
  using VTile = SwizzledTile<kTileKV, kHeadDimV>;
  using OTile = SwizzledTile<64, kHeadDimV>;       // lies where Q lay
  static_assert(OTile::kBytes <= QTile::kBytes);
};

}  // namespace flashwok::cuda
