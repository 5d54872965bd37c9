// Everything at once.
#pragma once

#include "flashwok/attention.h"
#include "flashwok/status.h"
#include "flashwok/tensor.h"
#include "flashwok/trace.h"
