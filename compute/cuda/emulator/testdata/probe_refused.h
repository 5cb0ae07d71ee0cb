// What a kernel or the host must not do.

void some_exit() {
	test t;
	WANT(t.launch("some_exit", 1, 64, 0, t.allocate(256)) == 0);
	t.breaks(719);
}

void two_barriers() {
	test t;
	WANT(t.launch("two_barriers", 1, 64, 0, t.allocate(256)) == 0);
	t.breaks(719);
}

void half_a_warp() {
	test t;
	WANT(t.launch("half_a_warp", 1, 32, 0, t.allocate(256)) == 0);
	t.breaks(702);
}

void never() {
	test t;
	device_pointer flag = t.allocate(4);
	OK("cuMemsetD32_v2", flag, 0u, size_t{1});
	WANT(t.launch_on(nullptr, "never", 4, 32, 0, true, flag) == 0);
	t.breaks(702);
}

void out_of_bounds() {
	test t;
	WANT(t.launch("write_at", 1, 1, 0, t.allocate(256), -1) == 0);
	t.breaks(700);
}

void past_the_end() {
	test t;
	WANT(t.launch("write_at", 1, 1, 0, t.allocate(256), 64) == 0);
	t.breaks(700);
}

void after_release() {
	test t;
	device_pointer x = t.allocate(256);
	OK("cuMemFree_v2", x);
	WANT(t.launch("write_at", 1, 1, 0, x, 0) == 0);
	t.breaks(700);
}

void shared_overrun() {
	test t;
	WANT(t.launch("write_shared", 1, 32, 256, 256) == 0);
	t.breaks(700);
}

void shared_underrun() {
	test t;
	WANT(t.launch("write_shared", 1, 32, 256, -1) == 0);
	t.breaks(700);
}

void deep_stack() {
	test t;
	WANT(t.launch("recurse", 1, 1, 0, t.allocate(256)) == 0);
	t.breaks(700);
}

void misaligned() {
	test t;
	WANT(t.launch("misaligned", 1, 32, 640, t.allocate(256)) == 0);
	t.breaks(719);
}

void host_access() {
	test t;
	device_pointer x = t.copy_of(std::vector<float>{1, 2});
	*reinterpret_cast<volatile float *>(x) = 3; // the end of the process
}
