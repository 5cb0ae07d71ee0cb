// Layer normalisation (compute.LayerNorm).

static void layer_norm(const struct layer_norm *n, long first, long end)
{
    const long W = n->width;
    for (long r = first; r < end; r++) {
        const float *x = n->x + r * W;
        float *y = n->y + r * W, rest[VW] = {0};
        vf sum = splat(0);
        for (long j = 0; j < W; j += VW)
            sum += load_first(x + j, W - j);
        const float mean = horizontal_sum(sum) / W;
        long j = 0;
        for (sum = splat(0); j + VW <= W; j += VW) {
            vf d = load(x + j) - splat(mean);
            sum = fused(d, d, sum);
        }
        store_first(rest, load_first(x + j, W - j) - splat(mean), W - j);
        sum = fused(load(rest), load(rest), sum);
        const float factor = 1 / sqrtf(horizontal_sum(sum) / W + 1e-5f);
        for (j = 0; j < W; j += VW) {
            vf normal = (load_first(x + j, W - j) - splat(mean)) * splat(factor);
            store_first(y + j, fused(normal, load_first(n->weight + j, W - j),
                                     load_first(n->bias + j, W - j)), W - j);
        }
        if (n->stats) {
            n->stats[2 * r] = mean;
            n->stats[2 * r + 1] = factor;
        }
    }
}

// With the gradient g of the row z = (x - mean) factor: dx = factor (g - mean(g) - z mean(g z)).
static void layer_norm_rows(const struct layer_norm *n, long first, long end)
{
    const long W = n->width;
    for (long r = first; r < end; r++) {
        const float *x = n->x + r * W, *dy = n->dy + r * W;
        const float mean = n->stats[2 * r], factor = n->stats[2 * r + 1];
        float *dx = n->dx + r * W;
        vf sum = splat(0), product = splat(0);
        for (long j = 0; j < W; j += VW) {
            vf g = load_first(dy + j, W - j) * load_first(n->weight + j, W - j);
            vf z = (load_first(x + j, W - j) - splat(mean)) * splat(factor);
            sum += g;
            product = fused(g, z, product);
        }
        const vf part = splat(horizontal_sum(sum) / W), along = splat(horizontal_sum(product) / W);
        for (long j = 0; j < W; j += VW) {
            vf g = load_first(dy + j, W - j) * load_first(n->weight + j, W - j);
            vf z = (load_first(x + j, W - j) - splat(mean)) * splat(factor);
            store_first(dx + j, (g - part - z * along) * splat(factor), W - j);
        }
    }
}

// The rows are added in their order.
static void layer_norm_columns(const struct layer_norm *n, long first, long end)
{
    const long W = n->width;
    for (long j = first; j < end; j += VW) {
        vf dw = splat(0), db = splat(0);
        for (long r = 0; r < n->rows; r++) {
            vf dy = load_first(n->dy + r * W + j, end - j);
            vf z = load_first(n->x + r * W + j, end - j) - splat(n->stats[2 * r]);
            dw = fused(dy, z * splat(n->stats[2 * r + 1]), dw);
            db += dy;
        }
        store_first(n->dw + j, dw, end - j);
        store_first(n->db + j, db, end - j);
    }
}
