// Workspaces: a struct and all that it points to in one piece of memory.

#ifndef RONDO_ARENA_H
#define RONDO_ARENA_H

#include "kernels.h"

// A part of an arena: the pointer to set, and its bytes; 64-byte aligned.
struct part {
    void *at; // of a pointer: any type of them
    size_t bytes;
};

#define FLOATS(pointer, count) {&(pointer), (count) * sizeof(float)}
#define OPERANDS(kernels, pointer, count) \
    {&(pointer), (count) * ((kernels)->bf16 ? sizeof(uint16_t) : sizeof(float))}

// Allocates a struct of `size` bytes and its parts. The parts' `at` point into `model`, which is
// copied. All parts are zeros. Null when there is no memory. With `only` it allocates nothing, adds
// the bytes to *only and returns null.
void *rondo_arena_new(void *model, size_t size, struct part *parts, int n, size_t *only);

// Rows from one block to the next for n rows.
long rondo_spread(long n, size_t row_bytes);

#endif
