//go:build cuda

// The driver's functions, as jumps to where the driver's library has them.

#include "libcuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

// What the functions return that are not there: CUDA_ERROR_NO_DEVICE without a driver, and
// CUDA_ERROR_NOT_SUPPORTED if the driver is too old to have the function.
enum { NO_DEVICE = 100, NOT_SUPPORTED = 801 };

static char missing[512];
static int failure = NO_DEVICE; // or what the driver's cuInit returned

static int absent(void) { return failure; }
static int unknown(void) { return NOT_SUPPORTED; }

// Where each function is.
#define X(name) __attribute__((visibility("hidden"))) void *rondo_at_##name = absent;
#include "symbols.h"
#undef X

static const struct {
    const char *name;
    void **at;
} functions[] = {
#define X(name) {#name, &rondo_at_##name},
#include "symbols.h"
#undef X
};

enum { COUNT = sizeof functions / sizeof functions[0] };

// The functions themselves. They are hidden: another library that looks for one must find the
// driver's. The arguments' registers and the stack are the caller's, untouched; x16 is no argument.
#if defined(__x86_64__)
#define JUMP(name) "\tjmp *rondo_at_" #name "(%rip)\n"
#elif defined(__aarch64__)
#define JUMP(name)                                                                                 \
    "\tadrp x16, rondo_at_" #name "\n\tldr x16, [x16, :lo12:rondo_at_" #name "]\n\tbr x16\n"
#else
#error "CUDA is for x86-64 and arm64"
#endif
#define X(name)                                                                                    \
    __asm__("\t.text\n\t.balign 16\n\t.globl " #name "\n\t.hidden " #name "\n\t.type " #name       \
            ", %function\n" #name ":\n" JUMP(name) "\t.size " #name ", .-" #name "\n");
#include "symbols.h"
#undef X

static void point_all_to(void *function)
{
    for (int i = 0; i < COUNT; i++)
        *functions[i].at = function;
}

// What cuInit is to the program: gorgonia.org/cu calls it when the process starts, whatever the
// process is for, and would end it at an error.
static int start_later(unsigned flags)
{
    (void)flags;
    return 0;
}

__attribute__((constructor)) static void before_all(void) { rondo_at_cuInit = start_later; }

// A driver that does not start is as one that is not there.
static void start(void)
{
    int (*init)(unsigned) = (int (*)(unsigned))rondo_at_cuInit;
    int (*error_name)(int, const char **) = (int (*)(int, const char **))rondo_at_cuGetErrorName;
    int (*error_text)(int, const char **) = (int (*)(int, const char **))rondo_at_cuGetErrorString;
    int error = init(0);
    if (!error)
        return;
    const char *name = NULL, *text = NULL;
    error_name(error, &name);
    error_text(error, &text);
    snprintf(missing, sizeof missing, "libcuda.so.1 does not start: %s (%d): %s",
             name ? name : "error", error, text ? text : "it does not say why");
    failure = error;
    point_all_to(absent);
}

static void open_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        snprintf(missing, sizeof missing, "%s", dlerror());
        return;
    }
    for (int i = 0; i < COUNT; i++) {
        void *found = dlsym(driver, functions[i].name);
        *functions[i].at = found ? found : unknown;
    }
    start();
    rondo_at_cuInit = start_later;
}

static pthread_once_t opened = PTHREAD_ONCE_INIT;

const char *rondo_libcuda_start(void)
{
    pthread_once(&opened, open_driver);
    return missing;
}
