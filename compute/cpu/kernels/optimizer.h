// The update of parameters p from gradients g, one pass, for each optimizer of package compute.
// Nothing is fused, and the operations are those of the reference in their order: the same bits on
// every instruction set.

// New values of a vector of parameters and of their slots.
INLINE vf stepped(const struct update *u, vf p, vf g, vf *s1, vf *s2)
{
    const vf lr = splat(u->lr), epsilon = splat(u->epsilon);
    if (u->optimizer == ADAMW)
        p *= splat(1 - u->lr * u->decay);
    else
        g += splat(u->decay) * p;
    switch (u->optimizer) {
    case MOMENTUM:
        *s1 = splat(u->momentum) * *s1 + g;
        return p - lr * *s1;
    case NESTEROV:
        *s1 = splat(u->momentum) * *s1 + g;
        return p - lr * (g + splat(u->momentum) * *s1);
    case ADAM:
    case ADAMW:
        *s1 = splat(u->beta1) * *s1 + splat(1 - u->beta1) * g;
        *s2 = splat(u->beta2) * *s2 + splat(1 - u->beta2) * g * g;
        return p - splat(u->size) * *s1 / (square_root(*s2) * splat(u->root) + epsilon);
    case RMSPROP:
        *s1 = splat(u->rho) * *s1 + splat(1 - u->rho) * g * g;
        return p - lr * g / (square_root(*s1) + epsilon);
    case ADAGRAD:
        *s1 += g * g;
        return p - lr * g / (square_root(*s1) + epsilon);
    default:
        return p - lr * g;
    }
}

// Of a vector from element i on.
INLINE void update_vector(const struct update *u, int slots, long i, float *p, const float *g,
                          float *s1, float *s2)
{
    vf a = slots > 0 ? load(s1 + i) : splat(0), b = slots > 1 ? load(s2 + i) : splat(0);
    store(p + i, stepped(u, load(p + i), load(g + i), &a, &b));
    if (slots > 0)
        store(s1 + i, a);
    if (slots > 1)
        store(s2 + i, b);
}

INLINE void update_with(const struct update u, int slots, long n, float *restrict p,
                        const float *restrict g, float *restrict s1, float *restrict s2)
{
    long i = 0;
    for (; i + VW <= n; i += VW)
        update_vector(&u, slots, i, p, g, s1, s2);
    const long some = n - i;
    float last[4][VW] = {{0}};
    for (long j = 0; j < some; j++) {
        last[0][j] = p[i + j];
        last[1][j] = g[i + j];
        last[2][j] = slots > 0 ? s1[i + j] : 0;
        last[3][j] = slots > 1 ? s2[i + j] : 0;
    }
    update_vector(&u, slots, 0, last[0], last[1], last[2], last[3]);
    for (long j = 0; j < some; j++) {
        p[i + j] = last[0][j];
        if (slots > 0)
            s1[i + j] = last[2][j];
        if (slots > 1)
            s2[i + j] = last[3][j];
    }
}

// Each optimizer gets a loop of its own, in which its number is a constant.
#define UPDATE_AS(which, slots)                    \
    case which: {                                  \
        struct update v = *u;                      \
        v.optimizer = which;                       \
        update_with(v, slots, n, p, g, s1, s2);    \
        return;                                    \
    }

static void update(const struct update *u, long n, float *p, const float *g, float *s1,
                   float *s2)
{
    switch (u->optimizer) {
        UPDATE_AS(SGD, 0)
        UPDATE_AS(MOMENTUM, 1)
        UPDATE_AS(NESTEROV, 1)
        UPDATE_AS(ADAM, 2)
        UPDATE_AS(ADAMW, 2)
        UPDATE_AS(RMSPROP, 1)
        UPDATE_AS(ADAGRAD, 1)
    }
}
