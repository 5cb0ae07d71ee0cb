/* Opens and starts the driver, once in a process. Why there is none, for people; empty where there
   is one. */
const char *rondo_libcuda_start(void);
