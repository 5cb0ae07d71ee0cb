// Modules, functions and launches. The code of a kernel is what the C++ compiler made of its
// source; the PTX of a module must have an entry of its name and parameters of the same sizes, so
// that PTX that is older than the source shows.

#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "machine.h"

namespace emulator {
namespace {

struct module;

struct function {
	const kernel *code;
	module *home;
	size_t shared_most = kSharedDefault;
};

struct module {
	context *home;
	std::string text;
	std::map<std::string, std::unique_ptr<function>> functions;
};

struct registry {
	const kernel *first = nullptr; // of the compiled kernels
	std::set<module *> modules;
	std::set<function *> functions;
};

registry &all() {
	static registry *r = new registry;
	return *r;
}

// size_of is the size in bytes of a PTX type, as ".u64".
size_t size_of(const std::string &type) {
	size_t digits = type.find_first_of("0123456789");
	return digits == std::string::npos ? 0 : strtoul(type.c_str() + digits, nullptr, 10) / 8;
}

// parameters reads the sizes of an entry's parameters; at is behind its name. Each is declared as
// ".param .u64 name" or ".param .align 8 .b8 name[16]".
std::vector<size_t> parameters(const std::string &text, size_t at) {
	size_t end = text.find_first_of("){", at);
	std::vector<size_t> sizes;
	while ((at = text.find(".param", at)) < end) {
		at += 6;
		size_t stop = std::min(text.find_first_of(",)", at), end);
		std::string declared = text.substr(at, stop - at);
		size_t type = declared.rfind('.'), many = declared.find('[');
		size_t count = many == std::string::npos ? 1 : strtoul(&declared[many + 1], nullptr, 10);
		sizes.push_back(type == std::string::npos ? 0 : size_of(declared.substr(type)) * count);
	}
	return sizes;
}

// entry finds a kernel in PTX; npos if there is none.
size_t entry(const std::string &text, const std::string &name) {
	const std::string before = ".entry " + name;
	for (size_t at = text.find(before); at != std::string::npos; at = text.find(before, at + 1)) {
		char after = text[at + before.size()]; // the text ends with a zero
		if (strchr("( \t\n{", after) != nullptr) {
			return at + before.size();
		}
	}
	return std::string::npos;
}

const kernel *compiled(const std::string &name) {
	for (const kernel *k = all().first; k != nullptr; k = k->next) {
		if (name == k->name) {
			return k;
		}
	}
	return nullptr;
}

status find(module &m, const char *name, function **found) {
	auto &made = m.functions[name];
	if (made == nullptr) {
		size_t at = entry(m.text, name);
		const kernel *code = compiled(name);
		if (at == std::string::npos || code == nullptr) {
			complain("kernel %s is not in the %s", name,
				at == std::string::npos ? "module's PTX" : "sources that were compiled");
			m.functions.erase(name);
			return not_found;
		}
		if (parameters(m.text, at) != std::vector<size_t>(code->sizes, code->sizes + code->count)) {
			complain("kernel %s has other parameters in the PTX than in its source; compile it "
				"again", name);
			m.functions.erase(name);
			return invalid_image;
		}
		made = std::make_unique<function>();
		made->code = code;
		made->home = &m;
		all().functions.insert(made.get());
	}
	*found = made.get();
	return success;
}

// load checks what can be told of a module from its text.
status load(context &c, const char *text, module **made) {
	const char *target = strstr(text, ".target sm_");
	if (strstr(text, ".version") == nullptr || target == nullptr) {
		complain("a module that is not PTX");
		return invalid_image;
	}
	if (atoi(target + strlen(".target sm_")) > configured().capability) {
		return no_binary_for_gpu;
	}
	*made = new module{&c, text, {}};
	all().modules.insert(*made);
	return success;
}

void unload(module *m) {
	for (auto &f : m->functions) {
		all().functions.erase(f.second.get());
	}
	all().modules.erase(m);
	delete m;
}

// blocks_per_multiprocessor is how many blocks fit at once.
unsigned blocks_per_multiprocessor(const function &f, unsigned threads, size_t shared) {
	if (threads == 0 || threads > kThreadsMost || shared > f.shared_most) {
		return 0;
	}
	size_t rounded = (threads + 31) / 32 * 32;
	size_t by_threads = kThreadsPerMultiprocessor / rounded;
	size_t by_shared = kSharedPerMultiprocessor / (shared + kSharedReserved);
	return static_cast<unsigned>(
		std::min({by_threads, by_shared, size_t{kBlocksPerMultiprocessor}}));
}

// A launch with the values of its arguments.
struct kept_launch {
	launch l;
	std::vector<std::unique_ptr<unsigned char[]>> values;
};

// breaks says whether the GPU fails at this kernel: after RONDO_EMULATOR_KERNELS of them, in the one
// process that removes the file that RONDO_EMULATOR_BREAKS names.
bool breaks() {
	static const char *file = getenv("RONDO_EMULATOR_BREAKS");
	static int64_t left = number("RONDO_EMULATOR_KERNELS", 0);
	return file != nullptr && left-- <= 0 && unlink(file) == 0;
}

status check(const function &f, const launch &l) {
	size_t threads = size_t{l.block.x} * l.block.y * l.block.z;
	bool grid = l.grid.x > 0 && l.grid.y > 0 && l.grid.z > 0 && l.grid.x <= 2147483647 &&
		l.grid.y <= 65535 && l.grid.z <= 65535;
	if (!grid || threads == 0 || threads > kThreadsMost || l.block.z > 64) {
		complain("kernel %s: a launch of %u x %u x %u blocks of %u x %u x %u threads", f.code->name,
			l.grid.x, l.grid.y, l.grid.z, l.block.x, l.block.y, l.block.z);
		return invalid_value;
	}
	if (l.shared > f.shared_most) {
		complain("kernel %s: %zu bytes of shared memory, but cuFuncSetAttribute has allowed %zu",
			f.code->name, l.shared, f.shared_most);
		return invalid_value;
	}
	if (f.code->max_threads > 0 && threads > f.code->max_threads) {
		complain("kernel %s: %zu threads in a block, but it was compiled for %u", f.code->name,
			threads, f.code->max_threads);
		return launch_out_of_resources;
	}
	size_t fit = size_t{blocks_per_multiprocessor(f, static_cast<unsigned>(threads), l.shared)} *
		static_cast<size_t>(configured().multiprocessors);
	size_t blocks = size_t{l.grid.x} * l.grid.y * l.grid.z;
	return l.cooperative && blocks > fit ? cooperative_launch_too_large : success;
}

status start(function *f, const launch &shape, void *handle, void **values, void **extra) {
	return guarded([&](context &c) -> status {
		stream *s = stream_of(c, handle);
		if (s == nullptr || all().functions.count(f) == 0 || f->home->home != &c) {
			return invalid_handle;
		}
		if (extra != nullptr || (values == nullptr && f->code->count > 0)) {
			complain("kernel %s: launched without kernelParams", f->code->name);
			return invalid_value;
		}
		if (status bad = check(*f, shape); bad != success) {
			return bad;
		}
		auto kept = std::make_shared<kept_launch>();
		kept->l = shape;
		kept->l.code = f->code;
		for (size_t i = 0; i < f->code->count; i++) {
			kept->values.push_back(std::make_unique<unsigned char[]>(f->code->sizes[i]));
			memcpy(kept->values[i].get(), values[i], f->code->sizes[i]);
			kept->l.arguments.push_back(kept->values[i].get());
		}
		return enqueue(*s, std::string("kernel ") + f->code->name,
			[kept] { return breaks() ? launch_failed : run(kept->l); });
	});
}

} // namespace

void add(kernel *k) {
	k->next = const_cast<kernel *>(all().first);
	all().first = k;
}

status modules_open() {
	Dl_info ours;
	if (dladdr(reinterpret_cast<void *>(modules_open), &ours) == 0) {
		return not_found;
	}
	// The kernels' libraries take what they need from this one.
	dlopen(ours.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
	std::string folder = ours.dli_fname;
	folder = folder.substr(0, folder.rfind('/') + 1) + "kernels/";
	DIR *listing = opendir(folder.c_str());
	if (listing == nullptr) {
		complain("there is no folder %s with the compiled kernels", folder.c_str());
		return not_found;
	}
	status s = success;
	while (dirent *file = readdir(listing)) {
		std::string name = file->d_name;
		if (name.size() > 3 && name.substr(name.size() - 3) == ".so" &&
			dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
			complain("cannot load %s: %s", name.c_str(), dlerror());
			s = not_found;
		}
	}
	closedir(listing);
	return s;
}

void modules_close(context *c) {
	for (module *m : std::set<module *>(all().modules)) {
		if (m->home == c) {
			unload(m);
		}
	}
}

} // namespace emulator

using namespace emulator;

EXPORT cuModuleLoadData(module **made, const void *image) {
	return guarded([&](context &c) -> status {
		status s = forbidden(c);
		return s != success ? s : load(c, static_cast<const char *>(image), made);
	});
}

EXPORT cuModuleLoadDataEx(module **made, const void *image, unsigned, int *, void **) {
	return cuModuleLoadData(made, image);
}

EXPORT cuModuleUnload(module *m) {
	return guarded([&](context &c) -> status {
		if (all().modules.count(m) == 0) {
			return invalid_handle;
		}
		if (status s = finish_all(c); s != success) {
			return s;
		}
		unload(m);
		return success;
	});
}

EXPORT cuModuleGetFunction(function **found, module *m, const char *name) {
	return guarded([&](context &) -> status {
		return all().modules.count(m) == 0 ? invalid_handle : find(*m, name, found);
	});
}

EXPORT cuFuncGetAttribute(int *value, int attribute, function *f) {
	return guarded([&](context &) -> status {
		if (all().functions.count(f) == 0) {
			return invalid_handle;
		}
		int most = f->code->max_threads > 0 ? static_cast<int>(f->code->max_threads) : kThreadsMost;
		int version = configured().capability;
		// Threads of a block, shared, constant and local memory, registers, PTX and binary
		// version, cache mode, dynamic shared memory, carve-out.
		const int values[] = {most, 0, 0, 0, 32, version, version, 0,
			static_cast<int>(f->shared_most), -1};
		if (attribute < 0 || attribute >= static_cast<int>(std::size(values))) {
			return invalid_value;
		}
		*value = values[attribute];
		return success;
	});
}

EXPORT cuFuncSetAttribute(function *f, int attribute, int value) {
	return guarded([&](context &) -> status {
		if (all().functions.count(f) == 0) {
			return invalid_handle;
		}
		if (attribute == 9) { // the carve-out is a hint
			return success;
		}
		if (attribute != 8 || value < 0 || value > static_cast<int>(kSharedMost)) {
			return invalid_value;
		}
		f->shared_most = static_cast<size_t>(value);
		return success;
	});
}

EXPORT cuFuncSetCacheConfig(function *, int) { return success; }

EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, function *f, int threads,
	size_t shared) {
	return guarded([&](context &) -> status {
		if (all().functions.count(f) == 0) {
			return invalid_handle;
		}
		*blocks = static_cast<int>(
			blocks_per_multiprocessor(*f, static_cast<unsigned>(threads), shared));
		return success;
	});
}

EXPORT cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, function *f, int threads,
	size_t shared, unsigned) {
	return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}

EXPORT cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
	unsigned bz, unsigned shared, void *handle, void **values, void **extra) {
	return start(f, {nullptr, {}, {gx, gy, gz}, {bx, by, bz}, shared, false}, handle, values,
		extra);
}

EXPORT cuLaunchCooperativeKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
	unsigned by, unsigned bz, unsigned shared, void *handle, void **values) {
	return start(f, {nullptr, {}, {gx, gy, gz}, {bx, by, bz}, shared, true}, handle, values,
		nullptr);
}
