/* cuBLAS, opened where it is found. */

#include <stddef.h>

struct rondo_blas;

/* Opens a version of it, in a folder that ends in a slash or, if that is empty, where the loader
   looks; null if it is not there. */
struct rondo_blas *rondo_blas_open(int version, const char *folder);

/* Makes its handle for a stream, with a workspace in the device's memory, and tries it with a small
   product, of which it does not wait for the end. The context must be current, as for all that
   follow. They return cuBLAS's status. */
int rondo_blas_start(struct rondo_blas *blas, void *stream, void *workspace, size_t bytes);

/* Ends one that has not started, and closes its library. */
void rondo_blas_discard(struct rondo_blas *blas);

/* Ends the handle, if there is one, and frees blas. The library stays open: others may use it. */
int rondo_blas_close(struct rondo_blas *blas);

int rondo_blas_version(struct rondo_blas *blas);

/* The file that it was opened from. */
const char *rondo_blas_path(struct rondo_blas *blas);

/* c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n], all packed in columns;
   a and b are of this type, c of float32. */
struct rondo_product {
    int trans_a, trans_b, m, n, k, type, compute;
    float alpha, beta;
    size_t a, b, c; /* addresses */
};

int rondo_blas_gemm(struct rondo_blas *blas, struct rondo_product p);
