//go:build cuda

#define _GNU_SOURCE // dladdr
#include "nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What is used of nccl.h, which is in none of CUDA's packages.
enum { FLOAT32 = 7, SUM = 0 };

struct id {
    char bytes[RONDO_NCCL_ID_BYTES];
};

// NCCL's configuration as it was in 2.14, where it began. Each newer library takes it, by its size
// and version, and has its own defaults for what came later.
struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
enum { CONFIG_MAGIC = (int)0xcafebeef, CONFIG_VERSION = 21400 };

struct rondo_nccl {
    int (*get_version)(int *);
    const char *(*error_text)(int);
    int (*unique_id)(struct id *);
    int (*join)(void **, int, struct id, int, struct config *);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
    int (*async_error)(void *, int *);
    int (*abort)(void *);
};

struct rondo_nccl *rondo_nccl_open(const char *file, char *why, size_t bytes)
{
    struct rondo_nccl *nccl = calloc(1, sizeof *nccl);
    /* NVLink SHARP may be chosen, and its sums differ between runs (NVIDIA/nccl, issue 1497). */
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    void *library = nccl ? dlopen(file, RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (library) {
        *(void **)&nccl->get_version = dlsym(library, "ncclGetVersion");
        *(void **)&nccl->error_text = dlsym(library, "ncclGetErrorString");
        *(void **)&nccl->unique_id = dlsym(library, "ncclGetUniqueId");
        *(void **)&nccl->all_reduce = dlsym(library, "ncclAllReduce");
        *(void **)&nccl->async_error = dlsym(library, "ncclCommGetAsyncError");
        *(void **)&nccl->abort = dlsym(library, "ncclCommAbort");
        *(void **)&nccl->join = dlsym(library, "ncclCommInitRankConfig");
        if (nccl->get_version && nccl->error_text && nccl->unique_id && nccl->all_reduce &&
            nccl->async_error && nccl->abort && nccl->join)
            return nccl;
        dlclose(library);
        snprintf(why, bytes, "%s lacks functions of NCCL 2.19.1", file);
    } else {
        snprintf(why, bytes, "%s", nccl ? dlerror() : "no memory");
    }
    free(nccl);
    return NULL;
}

void rondo_nccl_free(struct rondo_nccl *nccl) { free(nccl); }

const char *rondo_nccl_path(struct rondo_nccl *nccl)
{
    Dl_info info;
    return dladdr(*(void **)&nccl->all_reduce, &info) ? info.dli_fname : "";
}

int rondo_nccl_version(struct rondo_nccl *nccl, int *version) { return nccl->get_version(version); }

const char *rondo_nccl_text(struct rondo_nccl *nccl, int result)
{
    return nccl->error_text(result);
}

int rondo_nccl_new_id(struct rondo_nccl *nccl, void *id) { return nccl->unique_id(id); }

int rondo_comm_join(struct rondo_comm *comm, const void *id, int rank, int world)
{
    struct config config = {sizeof config, (unsigned)CONFIG_MAGIC, CONFIG_VERSION, 0};
    struct id by_value;
    memcpy(&by_value, id, sizeof by_value);
    return comm->nccl->join(&comm->comm, world, by_value, rank, &config);
}

int rondo_comm_sum(struct rondo_comm *comm, void *stream, size_t at, size_t count)
{
    return comm->nccl->all_reduce((void *)at, (void *)at, count, FLOAT32, SUM, comm->comm, stream);
}

int rondo_comm_state(struct rondo_comm *comm)
{
    int state = 0, result = comm->nccl->async_error(comm->comm, &state);
    return result ? result : state;
}

int rondo_comm_abort(struct rondo_comm *comm)
{
    return comm->comm ? comm->nccl->abort(comm->comm) : 0;
}
