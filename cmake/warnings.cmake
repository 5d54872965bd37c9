# Warnings of our own targets: flashwok_warnings(<target>).
# GCC 12 reports out-of-bounds subscripts in branches that are never taken: -Wno-array-bounds.
function(flashwok_warnings target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-psabi;-Wno-array-bounds>)
  if(FLASHWOK_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()
