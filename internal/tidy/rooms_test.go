package tidy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "rondo"

// A room is a package, with "/..." and all packages below it, and the imports that it may have.
type room struct {
	path    string
	imports string // of ours; "*" is anything but the rooms that nobody may import
	tests   string // further imports of its tests, of ours; "*" as above
	never   string // of others, with all below those that have a domain; tests are free
}

// Packages of others that some rooms may not import.
const (
	network = "net net/http net/rpc google.golang.org/grpc go.etcd.io"
	graphs  = "gorgonia.org/gorgonia gorgonia.org/tensor"
	storage = "os gocloud.dev"
	clocks  = "sync sync/atomic os/signal"

	kubernetes = "k8s.io"
)

// processes are the imports of every process of a job.
const processes = "cluster cluster/meet cluster/rpc internal/app internal/certs " +
	"internal/connlimit internal/health job/jobspec proto/rondo/v1 telemetry"

// rooms is the architecture: the packages of the module, each with the imports that it may have.
// Only cmd and worker know mathematics, floats on the wire and membership at once.
func rooms() []room {
	return slices.Concat(processRooms(), otherRooms(), taskRooms(), outerRooms())
}

// processRooms are the commands, the processes that they run, the meaning of a job to them, and
// their shared parts.
func processRooms() []room {
	return []room{
		{path: "cmd/...", imports: "*"},
		{path: "worker", imports: processes + " allreduce allreduce/compress allreduce/faultlink " +
			"allreduce/grpclink audit checkpoint compute job rehearsal sum sum/sharded " +
			"task telemetry/trace train train/agree", tests: "allreduce/memnet " +
			"cluster/coordinator cluster/memstore compute/cpu coordinator " +
			"internal/certs/certstest local",
			never: kubernetes},
		{path: "coordinator", imports: processes + " cluster/coordinator cluster/etcdstore " +
			"internal/events", tests: "checkpoint internal/transcript k8s local worker",
			never: kubernetes},
		{path: "local", imports: processes + " cluster/etcdstore coordinator internal/events " +
			"internal/flock internal/procgroup job job/recipe", never: kubernetes},
		{path: "observe", imports: processes + " cluster/etcdstore coordinator dashboard " +
			"internal/events internal/web k8s/kube telemetry/metrics",
			tests: "cluster/coordinator k8s/kube/kubetest local"},
		{path: "serve", imports: "internal/app internal/certs internal/web model task/lm",
			tests: "internal/certs/certstest", never: kubernetes + " " + graphs},
		{path: "job", imports: "allreduce/compress checkpoint checkpoint/bucket compute " +
			"compute/cpu compute/cuda corpus corpus/examples corpus/series corpus/subword " +
			"internal/app job/jobspec model proto/rondo/v1 sum task task/ahead task/answer " +
			"task/classify task/count task/describe task/example task/fill task/hmm " +
			"task/label task/lines task/lm task/memory task/mlp task/ngram task/regress " +
			"task/reservoir task/tag task/translate task/tree task/turing telemetry train " +
			"train/optim",
			tests: "compute/cuda/emulator compute/devicetest local telemetry worker",
			never: "google.golang.org/grpc go.etcd.io"},
		{path: "job/proof", imports: "audit checkpoint checkpoint/bucket corpus internal/app job " +
			"proto/rondo/v1", never: "google.golang.org/grpc go.etcd.io"},
		{path: "job/jobspec",
			imports: "compute corpus/location job/recipe proto/rondo/v1 rehearsal task",
			never:   network + " " + graphs},
		{path: "job/budget", imports: "internal/app proto/rondo/v1", tests: "job/jobspec",
			never: network + " " + graphs},
		{path: "job/recipe", tests: "job/jobspec proto/rondo/v1", never: network + " " + graphs},
		{path: "internal/tidy"},
		{path: "internal/app", imports: "internal/printable job/jobspec", never: graphs},
		{path: "internal/certs", tests: "internal/certs/certstest internal/transcript",
			never: graphs},
		{path: "internal/certs/certstest", imports: "internal/certs", never: graphs},
		{path: "internal/connlimit", never: graphs + " google.golang.org/grpc"},
		{path: "internal/web", imports: "internal/certs internal/connlimit", never: graphs},
		{path: "internal/events", imports: "proto/rondo/v1 telemetry", never: graphs},
		{path: "internal/health", tests: "internal/port", never: graphs},
		{path: "internal/port", never: graphs},
		{path: "internal/transcript", never: network + " " + graphs},
		{path: "internal/netns", never: network + " " + graphs},
		{path: "internal/printable", never: network + " " + graphs},
		{path: "internal/procgroup", never: network + " " + graphs},
		{path: "internal/drawing", never: network + " " + graphs},
		{path: "internal/flock", never: network + " " + graphs},
		{path: "internal/replay", never: network + " " + graphs},
	}
}

func otherRooms() []room {
	return []room{
		// The messages between processes.
		{path: "proto/rondo/v1"},

		// Text and arithmetic.
		{path: "corpus", imports: "corpus/location corpus/subword internal/flock",
			never: network + " " + graphs},
		{path: "corpus/subword", never: network + " " + graphs + " " + storage},
		{path: "corpus/location", never: network + " " + graphs + " " + storage},
		{path: "corpus/examples", imports: "corpus", never: network + " " + graphs},
		{path: "corpus/series", imports: "corpus", never: network + " " + graphs},
		{path: "corpus/zipfplot", imports: "corpus internal/drawing",
			never: network + " " + graphs},
		{path: "compute", never: network + " " + graphs + " " + storage},
		{path: "compute/devicetest", imports: "compute", tests: "compute/cpu",
			never: network + " " + graphs},
		{path: "compute/cpu", imports: "compute compute/cpu/kernels",
			tests: "compute/devicetest", never: network + " " + graphs},
		{path: "compute/cpu/kernels", never: network + " " + graphs},
		{path: "compute/cuda", imports: "compute compute/cuda/driver compute/cuda/kernels",
			tests: "compute/cpu compute/devicetest compute/cuda/emulator",
			never: network + " " + graphs},
		{path: "compute/cuda/driver", imports: "compute/cuda/libcuda",
			tests: "compute/cuda/emulator", never: network + " " + graphs},
		{path: "compute/cuda/libcuda", tests: "compute/cuda/emulator",
			never: network + " " + graphs},
		{path: "compute/cuda/emulator", never: network + " " + graphs},
		{path: "compute/cuda/kernels", never: network + " " + graphs},
		{path: "model", imports: "compute", tests: "compute/cpu compute/devicetest",
			never: network + " " + storage},
		{path: "train/agree", imports: "compute", tests: "compute/cpu",
			never: network + " " + graphs},
		{path: "train/exact", never: network + " " + graphs},
		{path: "train/optim", imports: "compute", tests: "compute/cpu",
			never: network + " " + graphs},
		{path: "train", imports: "compute train/agree train/exact train/optim",
			tests: "compute/cpu compute/devicetest model allreduce/compress sum sum/sharded",
			never: network + " " + graphs},
		{path: "sum/sharded", imports: "compute sum train/agree", tests: "compute/cpu",
			never: network + " " + graphs + " " + storage},
		{path: "sum", imports: "allreduce allreduce/compress compute", tests: "compute/cpu",
			never: network + " " + graphs + " " + storage},
		// The ring.
		{path: "allreduce", tests: "allreduce/linktest",
			never: network + " " + graphs + " " + storage},
		{path: "allreduce/compress", tests: "allreduce",
			never: network + " " + graphs + " " + storage},
		{path: "allreduce/linktest", imports: "allreduce", never: network},
		{path: "allreduce/faultlink", imports: "allreduce", tests: "allreduce/linktest",
			never: network},
		{path: "allreduce/memnet", imports: "allreduce", tests: "allreduce/linktest",
			never: network},
		{path: "allreduce/shm", imports: "allreduce",
			never: graphs + " " + storage + " google.golang.org/grpc"},
		{path: "allreduce/grpclink/framing", imports: "allreduce",
			never: graphs + " " + storage},
		{path: "allreduce/grpclink",
			imports: "allreduce allreduce/shm allreduce/grpclink/framing proto/rondo/v1",
			tests:   "allreduce/linktest internal/port"},

		// Membership. cluster decides; the others carry events to it and its decisions out.
		{path: "cluster", tests: "cluster/memstore",
			never: network + " " + storage + " " + clocks},
		{path: "cluster/coordinator", imports: "cluster", tests: "cluster/memstore",
			never: network},
		{path: "cluster/memstore", imports: "cluster", tests: "cluster/storetest", never: network},
		{path: "cluster/storetest", imports: "cluster", never: network},
		{path: "cluster/etcdstore", imports: "cluster proto/rondo/v1",
			tests: "cluster/storetest cluster/coordinator internal/port internal/transcript"},
		{path: "cluster/rpc", imports: "cluster proto/rondo/v1",
			tests: "cluster/memstore cluster/coordinator"},

		{path: "cluster/meet", imports: "cluster cluster/etcdstore cluster/rpc internal/app " +
			"internal/certs job/jobspec proto/rondo/v1 telemetry",
			tests: "cluster/memstore internal/port", never: graphs},
		{path: "cluster/etcdmember", imports: "internal/certs",
			tests: "cluster cluster/etcdstore internal/certs/certstest internal/port",
			never: graphs},

		// Storage, and the views of a job.
		{path: "checkpoint/bucket", never: graphs},
		{path: "checkpoint", never: network + " " + graphs},
		{path: "telemetry", imports: "internal/printable", never: network + " " + graphs},
		{path: "telemetry/trace", never: network + " " + graphs},
		{path: "telemetry/metrics", imports: "telemetry", never: network + " " + graphs},
		{path: "dashboard", imports: "telemetry", never: graphs + " os"},

		// Faults to order, and the proof that they cost no text.
		{path: "rehearsal", never: network + " " + graphs},
		{path: "audit", imports: "corpus", never: network + " " + graphs},
	}
}

// taskRooms are the list of tasks, and the folders of each.
func taskRooms() []room {
	return []room{
		{path: "task"},
		{path: "task/ahead", imports: "train", never: network + " " + graphs + " " + storage},
		{path: "task/lm", imports: "compute corpus model task/ahead train",
			tests: "compute/cpu", never: network + " " + storage},
		{path: "task/regress", imports: "compute corpus/series model task/lm train",
			tests: "compute/cpu corpus", never: network + " " + storage},
		{path: "task/count", imports: "compute corpus model task/ahead task/example train",
			never: network + " " + storage},
		{path: "task/reservoir", imports: "compute model task/count task/regress train",
			tests: "corpus corpus/series task/tasktest", never: network + " " + storage},
		{path: "task/tasktest", imports: "compute compute/cpu model train", never: network},
		{path: "task/ngram", imports: "compute corpus model task/count task/lm train",
			tests: "task/tasktest", never: network + " " + storage},
		{path: "task/memory", imports: "compute model task/ahead task/count task/example train",
			tests: "task/tasktest", never: network + " " + storage},
		{path: "task/answer", imports: "compute corpus corpus/examples model task/count " +
			"task/example task/lines task/memory train", tests: "task/tasktest",
			never: network + " " + storage},
		{path: "task/tree", imports: "compute corpus corpus/examples model task/ahead " +
			"task/example task/label task/lines train", tests: "task/tasktest",
			never: network + " " + storage},
		{path: "task/turing", imports: "compute corpus model task/count task/memory train",
			tests: "task/tasktest", never: network + " " + storage},
		{path: "task/hmm", imports: "compute corpus model task/count task/lm train",
			tests: "task/tasktest", never: network + " " + storage},
		{path: "task/mlp", imports: "corpus model task/ahead task/count task/example task/lm " +
			"train", tests: "task/tasktest", never: network + " " + storage},
		{path: "task/example", imports: "corpus/examples task/ahead train",
			never: network + " " + graphs + " " + storage},
		{path: "task/lines", never: network + " " + graphs + " " + storage},
		{path: "task/label", imports: "corpus corpus/examples model task/ahead task/example " +
			"task/lines train", tests: "compute compute/cpu",
			never: network + " " + storage},
		{path: "task/fill", imports: "corpus model task/label train",
			tests: "compute compute/cpu", never: network + " " + storage},
		{path: "task/describe", imports: "model task/translate",
			tests: "compute compute/cpu corpus corpus/examples task/example train",
			never: network + " " + storage},
		{path: "task/translate", imports: "compute corpus corpus/examples model task/ahead " +
			"task/example train", tests: "compute compute/cpu", never: network + " " + storage},
		{path: "task/classify", imports: "train", never: network + " " + graphs + " " + storage},
		{path: "task/tag", imports: "train", never: network + " " + graphs + " " + storage},
	}
}

func outerRooms() []room {
	return []room{
		// Kubernetes: manifests, the image, and the cluster's API.
		{path: "k8s/kube", imports: "corpus/location internal/app internal/certs job " +
			"job/jobspec k8s proto/rondo/v1 task telemetry",
			tests: "coordinator internal/port k8s/kube/kubetest",
			never: graphs + " google.golang.org/grpc go.etcd.io"},
		{path: "k8s/kube/kubetest", never: graphs + " google.golang.org/grpc go.etcd.io"},
		{path: "k8s", tests: "job/jobspec", never: network + " " + graphs + " " + storage},
		{path: "k8s/image", never: network + " " + graphs},

		// Tests and benchmarks of the whole.
		{path: "integration/...", imports: "*", tests: "*"},
		{path: "bench/...", imports: "*", tests: "*"},
	}
}

// nobodyImports reports whether a room looks at the whole, and so is imported by none.
func nobodyImports(path string) bool {
	return within(path, "integration") || path == "internal/tidy"
}

// A listed package, as `go list -json` gives it.
type listed struct {
	ImportPath                         string
	Dir                                string
	Name                               string
	Imports, TestImports, XTestImports []string
}

// builds are the variants of the module: which files count, and so imports, differs.
func builds() map[string][]string {
	return map[string][]string{
		"with cgo": {"CGO_ENABLED=1"},
		"pure Go":  {"CGO_ENABLED=0"},
		"cuda":     {"CGO_ENABLED=1", "GOFLAGS=-tags=cuda"},
	}
}

// list returns the packages of the module in every build.
func list(t *testing.T) []listed {
	t.Helper()
	var all []listed
	for _, build := range slices.Sorted(maps.Keys(builds())) {
		fields := "-json=ImportPath,Dir,Name,Imports,TestImports,XTestImports"
		output := goList(t, builds()[build], "-e", fields, "./...")
		decoder := json.NewDecoder(bytes.NewReader(output))
		for {
			var p listed
			err := decoder.Decode(&p)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("go list, %s: %v", build, err)
			}
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		t.Fatal("go list found no package")
	}
	return all
}

func goList(t *testing.T, environment []string, arguments ...string) []byte {
	t.Helper()
	command := exec.Command("go", append([]string{"list"}, arguments...)...)
	command.Dir = root(t)
	command.Env = append(os.Environ(), environment...)
	var complaint bytes.Buffer
	command.Stderr = &complaint
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", command, err, &complaint)
	}
	return output
}

// within reports whether path is the folder or lies below it.
func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// covers reports whether pattern, a path or a path with "/...", covers path.
func covers(pattern, path string) bool {
	if folder, below := strings.CutSuffix(pattern, "/..."); below {
		return within(path, folder)
	}
	return pattern == path
}

// allows reports whether the words of allowed let a package import ours at path.
func allows(allowed, path string) bool {
	return slices.ContainsFunc(strings.Fields(allowed), func(word string) bool {
		return word == "*" || covers(word, path)
	})
}

// banned reports whether the words of never forbid an import of others. A word with a domain stands
// for all packages below it too; one of the standard library only for itself.
func banned(never, path string) bool {
	return slices.ContainsFunc(strings.Fields(never), func(word string) bool {
		return word == path || strings.Contains(word, ".") && within(path, word)
	})
}

// importProblems returns the imports of a package that the table forbids.
func importProblems(table []room, p listed) []string {
	ours := func(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }
	path, ok := ours(p.ImportPath)
	if !ok {
		return []string{fmt.Sprintf("%s: no package belongs in the root folder", p.ImportPath)}
	}
	at := slices.IndexFunc(table, func(r room) bool { return covers(r.path, path) })
	if at < 0 {
		return []string{fmt.Sprintf("%s: not in the table of rooms; add it there", path)}
	}
	var problems []string
	complain := func(who, what, why string) {
		problems = append(problems, fmt.Sprintf("%s imports %s: %s", who, what, why))
	}
	r := table[at]
	for _, imported := range p.Imports {
		if target, ok := ours(imported); ok {
			if nobodyImports(target) {
				complain(path, target, "nobody may")
			} else if !allows(r.imports, target) {
				complain(path, target, fmt.Sprintf("it may import %q of ours", r.imports))
			}
		} else if banned(r.never, imported) {
			complain(path, imported, "the table says never")
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		target, ok := ours(imported)
		if ok && target != path && !allows(r.imports+" "+r.tests, target) {
			complain(path+"'s test", target,
				fmt.Sprintf("it may import %q of ours, its tests also %q", r.imports, r.tests))
		}
	}
	return problems
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range list(t) {
		for _, problem := range importProblems(rooms(), p) {
			if !seen[problem] {
				t.Error(problem)
			}
			seen[problem] = true
		}
	}
}

// The table refuses wrong imports, here of packages that do not exist.
func TestImportProblems(t *testing.T) {
	table := []room{
		{path: "a", imports: "b", tests: "c", never: "os example.com/x"},
		{path: "cmd/...", imports: "*"},
	}
	a := func(imports ...string) listed { return listed{ImportPath: "rondo/a", Imports: imports} }
	command := func(imports ...string) listed {
		return listed{ImportPath: "rondo/cmd/x", Imports: imports}
	}
	for name, c := range map[string]struct {
		p    listed
		want string
	}{
		"allowed":       {a("rondo/b", "fmt", "os/exec"), ""},
		"unknown":       {listed{ImportPath: "rondo/z"}, "z: not in the table"},
		"root":          {listed{ImportPath: "rondo"}, "no package belongs in the root"},
		"below no room": {listed{ImportPath: "rondo/a/b"}, "a/b: not in the table"},
		"not its own":   {a("rondo/c"), "a imports c: it may import \"b\""},
		"standard":      {a("os"), "never"},
		"foreign":       {a("example.com/x/y"), "never"},
		"command":       {command("rondo/c", "rondo/worker"), ""},
		"integration":   {command("rondo/integration"), "nobody may"},
		"its test": {listed{ImportPath: "rondo/a", TestImports: []string{"rondo/c", "os"},
			XTestImports: []string{"rondo/a"}}, ""},
		"not its test": {listed{ImportPath: "rondo/a", XTestImports: []string{"rondo/d"}},
			"a's test imports d"},
	} {
		check(t, name, importProblems(table, c.p), c.want)
	}
}

// Workers and coordinators run by the hundred and in small images, so they must not link packages
// that only `rondo` needs.
func TestLeanCommands(t *testing.T) {
	const heavy = "go.etcd.io/etcd/server k8s.io/client-go k8s.io/api k8s.io/apimachinery"
	for _, command := range []string{"./cmd/worker", "./cmd/coordinator"} {
		for path := range strings.Lines(string(goList(t, nil, "-deps", command))) {
			if banned(heavy, strings.TrimSpace(path)) {
				t.Errorf("%s links %s", command, path)
			}
		}
	}
}
