// Tensors exactly as large as they must be, so that a sanitizer sees what reads or writes past
// one; and the random numbers that decide their values and shapes.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state;

static uint64_t next_random(void) // SplitMix64
{
    uint64_t z = random_state += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

// A number in 0..n-1.
static long below(long n) { return (long)(next_random() % (uint64_t)n); }

static float between(float low, float high)
{
    return low + (high - low) * (float)(next_random() >> 40) / (1 << 24);
}

// All tensors of a case, and what the case is, for a message.
struct bag {
    char name[256];
    void *memory[64];
    float *written[64]; // which a call must fill
    long sizes[64];
    int n, outputs;
};

// Memory of exactly so many bytes, `past` bytes after a multiple of 16.
static void *take(struct bag *b, size_t bytes, size_t past)
{
    if (b->n == 64) {
        fprintf(stderr, "%s: more than 64 tensors\n", b->name);
        exit(2);
    }
    char *p = malloc(bytes + past);
    if (!p) {
        fprintf(stderr, "%s: no memory for %zu bytes\n", b->name, bytes);
        exit(2);
    }
    b->memory[b->n++] = p;
    return p + past;
}

// Floats and ids are on a multiple of 4 and no larger one: views of parameters begin anywhere.
enum { OFF = 4 };

// n floats in [-size, size].
static float *values(struct bag *b, long n, float size)
{
    float *x = take(b, n * sizeof *x, OFF);
    for (long i = 0; i < n; i++)
        x[i] = between(-size, size);
    return x;
}

// n floats that a call must fill: NaN until then.
static float *output(struct bag *b, long n)
{
    float *x = take(b, n * sizeof *x, OFF);
    for (long i = 0; i < n; i++)
        x[i] = NAN;
    b->written[b->outputs] = x;
    b->sizes[b->outputs++] = n;
    return x;
}

// n ids in first..limit-1.
static int32_t *ids(struct bag *b, long n, long first, long limit)
{
    int32_t *x = take(b, n * sizeof *x, OFF);
    for (long i = 0; i < n; i++)
        x[i] = (int32_t)(first + below(limit - first));
    return x;
}

// Frees a case's tensors. Every output must have been filled with finite values.
static void give_back(struct bag *b)
{
    for (int i = 0; i < b->outputs; i++)
        for (long j = 0; j < b->sizes[i]; j++)
            if (!isfinite(b->written[i][j])) {
                fprintf(stderr, "%s: element %ld of %ld of output %d is %g\n", b->name, j,
                        b->sizes[i], i, b->written[i][j]);
                exit(2);
            }
    for (int i = 0; i < b->n; i++)
        free(b->memory[i]);
    b->n = b->outputs = 0;
}
