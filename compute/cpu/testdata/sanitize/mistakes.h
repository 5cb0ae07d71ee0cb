// Mistakes that a sanitizer must report, or it would not report others.

#include "arena.h"

// A kernel reads one element more than a tensor has.
static void read_past_tensor(void)
{
    struct bag b = {.name = "past a tensor"};
    float *y = values(&b, 34, 1), *x = values(&b, 33, 1);
    rondo_add(rondo_kernels("", 0), 0, 34, y, x);
    give_back(&b);
}

// A kernel reads one element more than a part of a workspace has; another part follows.
static void read_past_part(void)
{
    struct bag b = {.name = "past a part"};
    struct {
        float *first, *second;
    } w = {0};
    struct part parts[] = {FLOATS(w.first, 48), FLOATS(w.second, 48)};
    void *arena = rondo_arena_new(&w, sizeof w, parts, 2, 0);
    memcpy(&w, arena, sizeof w);
    rondo_add(rondo_kernels("", 0), 0, 49, values(&b, 49, 1), w.first);
    free(arena);
    give_back(&b);
}

static void count(void *with, const struct member *m)
{
    for (int i = 0; i < 1000; i++)
        *(volatile int *)with += 1 + m->index;
}

// The threads of a team write to the same place.
static void race(void)
{
    int sum = 0;
    struct team *t = rondo_team_new(3);
    rondo_team_run(t, count, &sum);
    rondo_team_free(t);
}

static void overflow(void)
{
    volatile int most = 0x7fffffff;
    most = most + 1;
}

static int make_mistake(const char *name)
{
    static const struct {
        const char *name;
        void (*make)(void);
    } mistakes[] = {{"tensor", read_past_tensor}, {"part", read_past_part}, {"race", race},
                    {"overflow", overflow}};
    for (int i = 0; i < (int)(sizeof mistakes / sizeof *mistakes); i++)
        if (!strcmp(name, mistakes[i].name)) {
            mistakes[i].make();
            return 0;
        }
    fprintf(stderr, "there is no mistake %s\n", name);
    return 2;
}
