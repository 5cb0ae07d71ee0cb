/* What Go cannot call as it is, or only awkwardly. */

#include <cuda.h>
#include <stdint.h>

/* What a call has made, if its result is CUDA_SUCCESS. */
struct rondo_made {
    CUresult result;
    void *it;
};

struct rondo_made rondo_alloc_host(size_t bytes);
struct rondo_made rondo_end_capture(CUstream stream); /* a CUgraph */
struct rondo_made rondo_instantiate(CUgraph graph);   /* a CUgraphExec */

/* CUDA's words; null if it does not know the error. */
const char *rondo_error_name(CUresult error);
const char *rondo_error_text(CUresult error);

/* How a kernel is launched; if cooperative, its blocks may wait for each other. */
struct rondo_launch {
    CUcontext context;
    CUfunction kernel;
    CUstream stream;
    unsigned grid[3], block[3], shared;
    int cooperative, parameters;
};

/* Makes the context current and launches a kernel. Each parameter is in the first bytes of one of
   the values. */
CUresult rondo_launch(struct rondo_launch l, uint64_t *values);

/* Makes the context current and looks whether the event has come to pass, until it has or the time
   is over: then it returns CUDA_ERROR_NOT_READY. It looks once at least. */
CUresult rondo_poll(CUcontext context, CUevent event, int64_t nanoseconds);
