// Faults of emulated operations, what the driver says on stderr, and the random numbers that
// decide the order of threads.

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "machine.h"

namespace emulator {
namespace {

std::atomic<long> executing{0}; // the system's number of the thread that runs an operation
sigjmp_buf after_fault;
address fault_at;
struct sigaction before_us;

long thread_number() { return syscall(SYS_gettid); }

struct generator {
	uint64_t seed, state;
};

generator &random_state() {
	static generator g = [] {
		auto seed = static_cast<uint64_t>(number("RONDO_EMULATOR_SEED", getpid()));
		return generator{seed, seed * 0x9e3779b97f4a7c15u + 1};
	}();
	return g;
}

// on_fault opens memory that an operation may touch, and ends one that touches what it may not.
// What is not ours goes to who was asked before, as Go's runtime, which makes panics of faults in
// Go code.
void on_fault(int signal, siginfo_t *info, void *registers) {
	fault_at = reinterpret_cast<address>(info->si_addr);
	if (executing == thread_number()) {
		if (memory_open(fault_at)) {
			return; // and try again
		}
		siglongjmp(after_fault, 1);
	}
	if (memory_is_device(fault_at)) {
		complain("code of the host touched %s", memory_describe(fault_at).c_str());
	}
	if ((before_us.sa_flags & SA_SIGINFO) != 0) {
		before_us.sa_sigaction(signal, info, registers);
	} else if (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN) {
		before_us.sa_handler(signal);
	} else {
		sigaction(signal, &before_us, nullptr); // the same fault again ends the process
	}
}

// need_signal_stack gives a thread that has none a stack for signals: a fibre's may have run over.
void need_signal_stack() {
	static thread_local unsigned char stack[65536];
	stack_t now;
	if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) != 0) {
		stack_t ours{};
		ours.ss_sp = stack;
		ours.ss_size = sizeof stack;
		sigaltstack(&ours, nullptr);
	}
}

} // namespace

void catch_faults() {
	struct sigaction ours {};
	ours.sa_sigaction = on_fault;
	ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	sigfillset(&ours.sa_mask);
	sigaction(SIGSEGV, &ours, &before_us);
}

status protect(const char *what, const std::function<status()> &f) {
	need_signal_stack();
	if (sigsetjmp(after_fault, 1) != 0) {
		executing = 0;
		std::string thread = running_thread();
		complain("%s%s%s touched %s", what, thread.empty() ? "" : ", ", thread.c_str(),
			describe(fault_at).c_str());
		return illegal_address;
	}
	executing = thread_number();
	status s = f();
	executing = 0;
	return s;
}

void complain(const char *format, ...) {
	char text[1000];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "emulated GPU: %s (RONDO_EMULATOR_SEED=%llu)\n", text,
		static_cast<unsigned long long>(random_state().seed));
}

int64_t number(const char *variable, int64_t otherwise) {
	const char *text = getenv(variable);
	return text == nullptr || *text == 0 ? otherwise : strtoll(text, nullptr, 10);
}

uint64_t random_number() {
	uint64_t &x = random_state().state;
	x ^= x >> 12; // xorshift64*
	x ^= x << 25;
	x ^= x >> 27;
	return (x * 0x2545f4914f6cdd1du) >> 16;
}

} // namespace emulator
