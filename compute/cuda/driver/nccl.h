/* NCCL, opened where it is found. Except as said, functions return NCCL's ncclResult_t. */

#include <stddef.h>

enum { RONDO_NCCL_ID_BYTES = 128 };

struct rondo_nccl;

/* Opens a file, or where the loader looks if that has no folder; null if it is not there, or lacks
   a function: then why says so, in so many bytes at most. Sets NCCL_NVLS_ENABLE to 0 unless it is
   set. */
struct rondo_nccl *rondo_nccl_open(const char *file, char *why, size_t bytes);

/* Forgets it. The library stays open: its threads may run. */
void rondo_nccl_free(struct rondo_nccl *nccl);

/* The file that it was opened from. */
const char *rondo_nccl_path(struct rondo_nccl *nccl);

int rondo_nccl_version(struct rondo_nccl *nccl, int *version);

/* Its words for a result. */
const char *rondo_nccl_text(struct rondo_nccl *nccl, int result);

int rondo_nccl_new_id(struct rondo_nccl *nccl, void *id);

/* A place in a group. NCCL writes to it in the background, so it is C's memory. */
struct rondo_comm {
    struct rondo_nccl *nccl;
    void *comm; /* null if NCCL has made none */
};

/* Begins to join a group with the current context's device, and waits for nobody. */
int rondo_comm_join(struct rondo_comm *comm, const void *id, int rank, int world);

/* Enqueues a sum of floats over the group, in place. */
int rondo_comm_sum(struct rondo_comm *comm, void *stream, size_t at, size_t count);

/* What has become of what was begun; ncclInProgress if it has not come to an end. */
int rondo_comm_state(struct rondo_comm *comm);

/* Ends what is under way, on the device too. */
int rondo_comm_abort(struct rondo_comm *comm);
