//go:build cgo

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "arena.h"

enum { HEADER = 1024 }; // the struct comes first

// Memory of half a large page or more begins on one and asks for large pages, which spares most of
// the address translation.
enum { LARGE = 2 << 20 };

void *rondo_allocate(size_t bytes)
{
    size_t align = bytes < LARGE / 2 ? 64 : LARGE;
    size_t whole = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, whole);
#ifdef MADV_HUGEPAGE
    if (p && align == LARGE)
        madvise(p, whole, MADV_HUGEPAGE); // advice: without it the same, more slowly
#endif
    return p;
}

void *rondo_arena_new(void *model, size_t size, struct part *parts, int n)
{
    size_t bytes = HEADER;
    for (int i = 0; i < n; i++)
        bytes += (parts[i].bytes + 63) / 64 * 64;
    char *arena = rondo_allocate(bytes);
    if (!arena)
        return 0;
    memset(arena, 0, bytes);
    char *next = arena + HEADER;
    for (int i = 0; i < n; i++) {
        memcpy(parts[i].at, &next, sizeof next);
        next += (parts[i].bytes + 63) / 64 * 64;
    }
    return memcpy(arena, model, size);
}

// A quarter page off whole pages, lest the same rows of all blocks compete for one set of the cache.
long rondo_spread(long n, size_t row_bytes)
{
    long page = 4096 / row_bytes, off = page / 4;
    return (n - off + page - 1) / page * page + off;
}
