// The switch from one fibre to another.
#pragma once

#include <stddef.h>

// emulator_switch stores the registers that a call must keep on the stack, the stack pointer in
// *from, and goes on with what another call stored at to.
extern "C" void emulator_switch(void **from, void *to);

namespace emulator {

// A new fibre's stack begins with so many words, of which one is where it is to begin.
#if defined(__x86_64__)
constexpr size_t kSavedWords = 8, kReturnWord = 6;
#elif defined(__aarch64__)
constexpr size_t kSavedWords = 20, kReturnWord = 11;
#else
#error "the emulated driver runs on x86-64 and arm64"
#endif

} // namespace emulator
