#if !__has_include(<cuda.h>)
#error for the tag cuda: make cuda, or before go build: eval "$(scripts/cuda.sh env)" (docs/gpu.md)
#endif

/* Opens and starts the driver, once in a process. Why there is none, for people; empty where there
   is one. */
const char *rondo_libcuda_start(void);
