//go:build cgo

#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "arena.h"

// The struct comes first, and ends before the header does.
enum { HEADER = 1024 };

// Memory of half a large page or more is aligned to large pages and asks for them: fewer TLB
// misses.
enum { LARGE = 2 << 20 };

static size_t alignment(size_t bytes) { return bytes < LARGE / 2 ? 64 : LARGE; }

size_t rondo_whole(size_t bytes)
{
    size_t align = alignment(bytes);
    return (bytes + align - 1) / align * align;
}

void *rondo_allocate(size_t bytes)
{
    size_t align = alignment(bytes), whole = rondo_whole(bytes);
    void *p = aligned_alloc(align, whole);
#ifdef MADV_HUGEPAGE
    if (p && align == LARGE)
        madvise(p, whole, MADV_HUGEPAGE); // advice: without it the same, more slowly
#endif
    return p;
}

// A gap between parts, for the address sanitizer to see accesses past a part's end.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 64 };
static void close_gap(char *from, char *to) { __asan_poison_memory_region(from, to - from); }
#else
enum { GAP = 0 };
static void close_gap(char *from, char *to) { (void)from, (void)to; }
#endif

static size_t room(const struct part *p) { return (p->bytes + 63) / 64 * 64 + GAP; }

void *rondo_arena_new(void *model, size_t size, struct part *parts, int n, size_t *only)
{
    size_t bytes = HEADER;
    for (int i = 0; i < n; i++)
        bytes += room(&parts[i]);
    if (only) {
        *only += bytes;
        return 0;
    }
    char *arena = rondo_allocate(bytes);
    if (!arena)
        return 0;
    memset(arena, 0, bytes);
    char *next = arena + HEADER;
    for (int i = 0; i < n; i++) {
        memcpy(parts[i].at, &next, sizeof next);
        close_gap(next + parts[i].bytes, next + room(&parts[i]));
        next += room(&parts[i]);
    }
    return memcpy(arena, model, size);
}

// A quarter page more than whole pages, so that the same row of all blocks does not map to one set
// of the cache.
long rondo_spread(long n, size_t row_bytes)
{
    long page = 4096 / row_bytes, off = page / 4;
    return (n - off + page - 1) / page * page + off;
}
