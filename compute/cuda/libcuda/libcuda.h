/* With the tag cuda Gorgonia is another program: it needs cuDNN, and opens every GPU. It is the
   compiler's setting that says that a build goes without that part of it. */
#ifndef RONDO_GORGONIA_WITHOUT_CUDA
#error for the tag cuda: make cuda, or before go build: eval "$(scripts/cuda.sh env)" (docs/gpu.md)
#endif

/* Opens and starts the driver, once in a process. Why there is none, for people; empty where there
   is one. */
const char *rondo_libcuda_start(void);
