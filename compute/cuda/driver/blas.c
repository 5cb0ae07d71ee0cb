//go:build cuda

#define _GNU_SOURCE // dladdr
#include "blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// What is used of cublas_api.h, which is not there where only the driver's header is.
enum { FLOAT32 = 0, DEFAULT_ALGORITHM = -1 };
// Sums of half precision products are not to be in half precision.
enum { DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };

struct rondo_blas {
    void *sister, *library; // as dlopen gave them; the sister may be null
    void *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *);
    int (*set_workspace)(void *, void *, size_t);
    int (*set_math_mode)(void *, int);
    int (*get_version)(void *, int *);
    int (*gemm)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                int, int, const void *, void *, int, int, int, int);
};

static int find_functions(struct rondo_blas *blas)
{
    void *library = blas->library;
    *(void **)&blas->create = dlsym(library, "cublasCreate_v2");
    *(void **)&blas->destroy = dlsym(library, "cublasDestroy_v2");
    *(void **)&blas->set_stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&blas->set_workspace = dlsym(library, "cublasSetWorkspace_v2");
    *(void **)&blas->set_math_mode = dlsym(library, "cublasSetMathMode");
    *(void **)&blas->get_version = dlsym(library, "cublasGetVersion_v2");
    *(void **)&blas->gemm = dlsym(library, "cublasGemmEx");
    return blas->create && blas->destroy && blas->set_stream && blas->set_workspace &&
           blas->set_math_mode && blas->get_version && blas->gemm;
}

static void close_libraries(struct rondo_blas *blas)
{
    if (blas->library)
        dlclose(blas->library);
    if (blas->sister)
        dlclose(blas->sister);
    free(blas);
}

struct rondo_blas *rondo_blas_open(int version, const char *folder)
{
    char sister[256], library[256];
    struct rondo_blas *blas = calloc(1, sizeof *blas);
    if (!blas)
        return NULL;
    snprintf(sister, sizeof sister, "%slibcublasLt.so.%d", folder, version);
    snprintf(library, sizeof library, "%slibcublas.so.%d", folder, version);
    if (*folder) // cuBLAS needs its sister, and the loader does not search a folder not its own
        blas->sister = dlopen(sister, RTLD_LAZY | RTLD_LOCAL);
    blas->library = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (blas->library && find_functions(blas))
        return blas;
    close_libraries(blas);
    return NULL;
}

// A product, of whatever is in the workspace: a library that has no code for the device, or that
// the driver is too old for, may say so only now.
static int try_product(struct rondo_blas *blas, void *workspace)
{
    enum { SIZE = 16, COMPUTE_FLOAT32 = 68 };
    size_t at = (size_t)workspace, bytes = sizeof(float) * SIZE * SIZE;
    struct rondo_product p = {0, 0, SIZE, SIZE, SIZE, FLOAT32, COMPUTE_FLOAT32, 1, 0,
                              at, at + bytes, at + 2 * bytes};
    return rondo_blas_gemm(blas, p);
}

int rondo_blas_start(struct rondo_blas *blas, void *stream, void *workspace, size_t bytes)
{
    int status = blas->create(&blas->handle);
    if (status)
        blas->handle = NULL;
    if (!status)
        status = blas->set_stream(blas->handle, stream);
    if (!status) // after the stream, which takes back the workspace
        status = blas->set_workspace(blas->handle, workspace, bytes);
    if (!status)
        status = blas->set_math_mode(blas->handle, DISALLOW_REDUCED_PRECISION_REDUCTION);
    return status ? status : try_product(blas, workspace);
}

void rondo_blas_discard(struct rondo_blas *blas)
{
    if (blas->handle)
        blas->destroy(blas->handle);
    close_libraries(blas);
}

int rondo_blas_close(struct rondo_blas *blas)
{
    int status = blas->handle ? blas->destroy(blas->handle) : 0;
    free(blas);
    return status;
}

int rondo_blas_version(struct rondo_blas *blas)
{
    int version = 0;
    blas->get_version(blas->handle, &version);
    return version;
}

const char *rondo_blas_path(struct rondo_blas *blas)
{
    Dl_info info;
    return dladdr(*(void **)&blas->gemm, &info) ? info.dli_fname : "";
}

int rondo_blas_gemm(struct rondo_blas *blas, struct rondo_product p)
{
    int lda = p.trans_a ? p.k : p.m, ldb = p.trans_b ? p.n : p.k;
    return blas->gemm(blas->handle, p.trans_a, p.trans_b, p.m, p.n, p.k, &p.alpha, (void *)p.a,
                      p.type, lda, (void *)p.b, p.type, ldb, &p.beta, (void *)p.c, FLOAT32, p.m,
                      p.compute, DEFAULT_ALGORITHM);
}
