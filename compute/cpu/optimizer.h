// The update of parameters p from gradients g, one pass, for each optimizer of package compute.

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

INLINE void update_with(const struct update u, int slots, long n, float *restrict p,
                        const float *restrict g, float *restrict s1, float *restrict s2)
{
    for (long i = 0; i < n; i += VW) {
        long some = least(VW, n - i);
        vf a = splat(0), b = splat(0), q;
        if (some == VW) {
            if (slots > 0)
                a = load(s1 + i);
            if (slots > 1)
                b = load(s2 + i);
            store(p + i, stepped(&u, load(p + i), load(g + i), &a, &b));
            if (slots > 0)
                store(s1 + i, a);
            if (slots > 1)
                store(s2 + i, b);
            continue;
        }
        if (slots > 0)
            a = load_some(s1 + i, some);
        if (slots > 1)
            b = load_some(s2 + i, some);
        q = stepped(&u, load_some(p + i, some), load_some(g + i, some), &a, &b);
        store_some(p + i, q, some);
        if (slots > 0)
            store_some(s1 + i, a, some);
        if (slots > 1)
            store_some(s2 + i, b, some);
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
