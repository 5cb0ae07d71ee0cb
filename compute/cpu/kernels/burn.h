// The peak rate of the table's product instruction: a loop that touches no memory.

// Runs as many products as fill the pipeline, `rounds` times, and returns the number of
// floating-point operations. For emulated bf16 these are the fused multiply-adds.
#if TILES

static double burn(long rounds)
{
    begin_products();
    TILE_ZERO(4);
    TILE_ZERO(5);
    TILE_ZERO(6);
    TILE_ZERO(7);
    for (long i = 0; i < rounds; i++) {
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    end_products();
    return 4.0 * TILE * TILE * BLOCK * 2 * rounds;
}

#else

#if NATIVE || !BF16
typedef vu burnt;
INLINE vf burn_one(vf sum, burnt x, burnt y) { return dot(sum, x, y); }
#else
typedef vf burnt;
INLINE vf burn_one(vf sum, burnt x, burnt y) { return fused(x, y, sum); }
#endif

static double burn(long rounds)
{
    enum { SUMS = VW == 16 ? 24 : 12 };
    volatile float seed = 0; // the compiler must not know the factors
    burnt x = (burnt)splat(seed), y = (burnt)splat(seed);
    vf sum[SUMS], all = splat(0);
    UNROLL for (int i = 0; i < SUMS; i++)
        sum[i] = splat(seed);
    for (long n = 0; n < rounds; n++)
        UNROLL for (int i = 0; i < SUMS; i++)
            sum[i] = burn_one(sum[i], x, y);
    UNROLL for (int i = 0; i < SUMS; i++)
        all += sum[i];
    return 2.0 * VW * (NATIVE ? 2 : 1) * SUMS * rounds + horizontal_sum(all); // which is zero
}

#endif
