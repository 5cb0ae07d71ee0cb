//go:build cuda

#include "driver.h"

#include <time.h>

struct rondo_made rondo_alloc_host(size_t bytes)
{
    struct rondo_made made = {0};
    made.result = cuMemHostAlloc(&made.it, bytes, 0);
    return made;
}

struct rondo_made rondo_end_capture(CUstream stream)
{
    CUgraph graph = NULL;
    CUresult result = cuStreamEndCapture(stream, &graph);
    return (struct rondo_made){result, graph};
}

struct rondo_made rondo_instantiate(CUgraph graph)
{
    CUgraphExec exec = NULL;
    CUresult result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    return (struct rondo_made){result, exec};
}

const char *rondo_error_name(CUresult error)
{
    const char *name = NULL;
    cuGetErrorName(error, &name);
    return name;
}

const char *rondo_error_text(CUresult error)
{
    const char *text = NULL;
    cuGetErrorString(error, &text);
    return text;
}

// More parameters than any kernel of ours has.
enum { MOST = 64 };

CUresult rondo_launch(struct rondo_launch l, uint64_t *values)
{
    void *parameters[MOST];
    if (l.parameters > MOST)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < l.parameters; i++)
        parameters[i] = &values[i];
    CUresult result = cuCtxSetCurrent(l.context);
    if (result != CUDA_SUCCESS)
        return result;
    if (l.cooperative)
        return cuLaunchCooperativeKernel(l.kernel, l.grid[0], l.grid[1], l.grid[2], l.block[0],
                                         l.block[1], l.block[2], l.shared, l.stream, parameters);
    return cuLaunchKernel(l.kernel, l.grid[0], l.grid[1], l.grid[2], l.block[0], l.block[1],
                          l.block[2], l.shared, l.stream, parameters, NULL);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void pause_processor(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

CUresult rondo_poll(CUcontext context, CUevent event, int64_t nanoseconds)
{
    enum { PAUSES = 16 }; // between two looks: each takes a lock that other threads want, too
    CUresult result = cuCtxSetCurrent(context);
    if (result != CUDA_SUCCESS)
        return result;
    int64_t deadline = now() + nanoseconds;
    while ((result = cuEventQuery(event)) == CUDA_ERROR_NOT_READY && now() < deadline)
        for (int i = 0; i < PAUSES; i++)
            pause_processor();
    return result;
}
