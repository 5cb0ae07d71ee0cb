package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	"rondo/internal/app"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// Options holds a submission's flags except those of the job itself: image, resources and settings
// of the pods. The keys of its JSON are the flags' names.
type Options struct {
	Image           string            `json:"image,omitempty"`
	ImagePullPolicy string            `json:"image-pull-policy,omitempty"`
	ImagePullSecret string            `json:"image-pull-secret,omitempty"`
	GPUsPerWorker   int64             `json:"gpus-per-worker,omitempty"`
	CPUsPerWorker   string            `json:"cpus-per-worker,omitempty"`
	MemoryPerWorker string            `json:"memory-per-worker,omitempty"` // empty: as estimated
	NodeSelector    map[string]string `json:"node-selector,omitempty"`
	Tolerations     []string          `json:"toleration,omitempty"` // KEY[=VALUE][:EFFECT]
	Labels          map[string]string `json:"labels,omitempty"`
	Spot            bool              `json:"spot,omitempty"`
	Queue           string            `json:"queue,omitempty"`
	TLS             bool              `json:"tls,omitempty"` // said, for an etcd of one's own
	Insecure        bool              `json:"insecure,omitempty"`
	Monitoring      bool              `json:"monitoring,omitempty"`
	JobSet          bool              `json:"jobset,omitempty"`
	Etcd            []string          `json:"etcd,omitempty"` // host:port; empty: the namespace's
	EtcdStorage     string            `json:"etcd-storage,omitempty"`
	S3Secret        string            `json:"s3-secret,omitempty"`
	S3Identity      bool              `json:"s3-identity,omitempty"`  // in place of the secret
	S3CIDR          []string          `json:"s3-cidr,omitempty"`      // of the store; empty: any
	GracePeriod     string            `json:"grace-period,omitempty"` // empty: by step and model
	HA              string            `json:"ha,omitempty"`           // true, false; empty: by size
	TTL             string            `json:"ttl-after-finished,omitempty"`
	Env             []string          `json:"env,omitempty"` // NAME=VALUE
	Annotations     map[string]string `json:"annotations,omitempty"`
	PriorityClass   string            `json:"priority-class,omitempty"`
	PodTemplate     string            `json:"pod-template,omitempty"` // its text
	LogFormat       string            `json:"log-format,omitempty"`
	Verbose         bool              `json:"verbose,omitempty"`
}

// A Submission holds all flags that a person gave. It is stored with the job, so that the job can
// be run again.
type Submission struct {
	Options
	Run  int64             `json:"run"`
	Spec map[string]string `json:"spec"` // JobSpec's fields, as flags have them
	// Extent is of the training data; without tokens: not known.
	job.Extent
}

// SubmissionFlags are the flags of a submission: the job's and the pods'.
type SubmissionFlags struct {
	set   *pflag.FlagSet
	names map[string]bool // of these flags; set may have others
	jobs  map[string]bool // the job's own flags among them
	given Options
}

func (f *SubmissionFlags) owns(flag string) bool { return f.names[flag] }

// AddSubmissionFlags defines the flags on set.
func AddSubmissionFlags(set *pflag.FlagSet) *SubmissionFlags {
	f := &SubmissionFlags{set: set, names: map[string]bool{}, jobs: map[string]bool{}}
	o := &f.given
	others := map[string]bool{}
	set.VisitAll(func(flag *pflag.Flag) { others[flag.Name] = true })
	defer set.VisitAll(func(flag *pflag.Flag) { f.names[flag.Name] = !others[flag.Name] })
	jobspec.AddFlags(set)
	set.VisitAll(func(flag *pflag.Flag) { f.jobs[flag.Name] = !others[flag.Name] })
	addPodFlags(set, o)
	set.BoolVar(&o.Spot, "spot", false, "run workers on preemptible nodes")
	set.StringVar(&o.Queue, "queue", "", "Kueue's local queue that admits the workers all at once")
	set.BoolVar(&o.TLS, "tls", false, "mutual TLS between all pods, with certificates by "+
		"cert-manager, or where there is none by submit; always, unless --etcd or --insecure "+
		"is given")
	set.BoolVar(&o.Insecure, "insecure", false, "let whoever reaches the pods read and change "+
		"what passes between them, and lead the job")
	set.BoolVar(&o.Monitoring, "monitoring", false, "objects for the Prometheus operator and "+
		"Grafana")
	set.BoolVar(&o.JobSet, "jobset", false, "run the workers as a JobSet (needs JobSet)")
	set.StringSliceVar(&o.Etcd, "etcd", nil, "host:port,... of an existing etcd, as pods "+
		"reach it; default: one in the namespace, shared by its jobs")
	set.StringVar(&o.EtcdStorage, "etcd-storage", defaultStorage, "of each etcd member: a size, "+
		"CLASS:SIZE of a storage class, or ephemeral: the node's disk")
	set.StringVar(&o.HA, "ha", "", fmt.Sprintf("two coordinators and three members of etcd, so "+
		"that a ring forms anew while one is lost; default: with %d workers or more", haWorkers))
	set.Lookup("ha").NoOptDefVal = "true"
	set.StringVar(&o.TTL, "ttl-after-finished", defaultTTL, "how long the job's objects stay "+
		"after its end; never: until it is deleted. Its record stays for rondo status")
	set.StringVar(&o.LogFormat, "log-format", "", "format of the pods' logs: "+
		strings.Join(telemetry.LogFormats(), ", ")+"; default: text")
	set.BoolVar(&o.Verbose, "verbose", false, "pods log connections, plans and timing, too")
	set.StringVar(&o.S3Secret, "s3-secret", defaultS3Secret, "secret for s3:// URLs, whose key "+
		"credentials is a file such as ~/.aws/credentials, with the region")
	set.BoolVar(&o.S3Identity, "s3-identity", false, "in place of the secret, the identity that "+
		"AWS gives the node or the service account")
	set.StringSliceVar(&o.S3CIDR, "s3-cidr", nil, "CIDR,... of the addresses at which workers "+
		"reach the store; default: any")
	for flag, value := range map[string]string{"pause-timeout": defaultPause,
		"ring-order": "spread; adjacent with GPUs", "threads": "--cpus-per-worker"} {
		set.Lookup(flag).DefValue = value // for the help text; Submission.job sets the value
	}
	set.Lookup("checkpoint-dir").Usage = "place of the checkpoints, pvc://CLAIM/PATH or " +
		"s3://BUCKET/PATH; none: no place, and the model is lost when the job ends"
	set.Lookup("corpus").Usage = "a text: pvc://CLAIM/PATH, s3://BUCKET/PATH, " +
		"configmap://NAME/KEY, builtin:opticks, or a file of this machine of at most 900 KiB"
	return f
}

// addPodFlags defines the flags about the pods themselves.
func addPodFlags(set *pflag.FlagSet, o *Options) {
	set.StringVar(&o.Image, "image", "", "[REGISTRY/]NAME[:TAG] of all pods; default: rondo of "+
		"the manifests' version, which no registry has: it must be on every node")
	set.StringVar(&o.ImagePullPolicy, "image-pull-policy", "IfNotPresent",
		"Always|IfNotPresent|Never")
	set.StringVar(&o.ImagePullSecret, "image-pull-secret", "", "secret to pull the image with")
	set.Int64Var(&o.GPUsPerWorker, "gpus-per-worker", 0, "1: each worker computes on a GPU of its "+
		"own (nvidia.com/gpu); 0: on CPUs")
	set.StringVar(&o.CPUsPerWorker, "cpus-per-worker", "", "CPU request of each worker, and "+
		"its --threads unless those are given; default: 1, and 2 with a GPU")
	set.StringVar(&o.MemoryPerWorker, "memory-per-worker", "", "memory request and limit of "+
		"each worker, such as 2Gi; default: estimated from the job's model and batch")
	set.StringVar(&o.GracePeriod, "grace-period", "", "time of a worker that must leave for "+
		"its step and a last checkpoint, such as 2m; default: by --step-timeout and the "+
		"model, at least 1m; 25s with --spot")
	set.StringToStringVar(&o.NodeSelector, "node-selector", nil, "LABEL=VALUE,... of the nodes "+
		"for workers")
	set.StringSliceVar(&o.Tolerations, "toleration", nil, "KEY[=VALUE][:EFFECT],... of nodes' "+
		"taints that workers tolerate")
	set.StringToStringVar(&o.Labels, "labels", nil, "LABEL=VALUE,... for all objects of the job")
	set.StringToStringVar(&o.Annotations, "annotations", nil, "NAME=VALUE,... for all pods of the "+
		"job")
	set.StringArrayVar(&o.Env, "env", nil, "NAME=VALUE in the workers' environment; may be "+
		"repeated")
	set.StringVar(&o.PriorityClass, "priority-class", "", "priority class of all pods of the job")
	set.StringVar(&o.PodTemplate, "pod-template", "", "YAML file with a part of a pod template "+
		"(metadata, spec), merged into the workers' as by kubectl patch: volumes, affinity, "+
		"variables from secrets, image pull secrets; their container is called worker")
}

// WithoutDefaults removes the defaults from the help text, because on resume a flag's default is
// the submitted value.
func (f *SubmissionFlags) WithoutDefaults() {
	f.set.VisitAll(func(flag *pflag.Flag) {
		if f.jobs[flag.Name] || f.names[flag.Name] && flag.Value.Type() == "string" {
			flag.DefValue = ""
		}
	})
}

// Submission returns what the flags and the file named by --config say, over the submission
// stored, which may be nil.
func (f *SubmissionFlags) Submission(stored *Submission) (*Submission, error) {
	s := &Submission{Options: f.given, Spec: map[string]string{}}
	if stored != nil {
		s.Options, s.Extent = f.over(stored.Options), stored.Extent
		maps.Copy(s.Spec, stored.Spec)
	}
	if f.set.Changed("pod-template") {
		var err error
		if s.PodTemplate, err = readTemplate(f.given.PodTemplate); err != nil {
			return nil, err
		}
	}
	file, err := f.configured()
	if err != nil {
		return nil, err
	}
	for name, flag := range jobFlags() {
		if f.set.Changed(flag) {
			s.Spec[name] = f.set.Lookup(flag).Value.String()
		} else if value, said := file[name]; said {
			s.Spec[name] = value
		}
	}
	if stored != nil && !s.sameText(stored) {
		s.Extent = job.Extent{}
	}
	return s, s.validate()
}

// CheckKept fails if a new submission does not say where its model is kept. A pod's disk is lost
// with the pod, and pods share no other place by themselves.
func (s *Submission) CheckKept() error {
	if s.Spec["checkpoint_dir"] != "" {
		return nil
	}
	return app.Usagef("--checkpoint-dir is needed: a pod's disk is lost with the pod, and the " +
		"model with it; give a volume, pvc://CLAIM/PATH, a bucket, s3://BUCKET/PATH, or none to " +
		"keep no model")
}

// sameText reports whether two submissions read the same data.
func (s *Submission) sameText(other *Submission) bool {
	differs := func(key string) bool { return s.Spec[key] != other.Spec[key] }
	return !slices.ContainsFunc([]string{"task", "corpus", "vectors", "tokenizer",
		"vocabulary_size", "normalize", "min_frequency", "max_tokens", "max_length",
		"max_examples"}, differs)
}

// configured returns the values in the file of --config.
func (f *SubmissionFlags) configured() (map[string]string, error) {
	path := f.set.Lookup("config").Value.String()
	if path == "" {
		return map[string]string{}, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, app.Usagef("--config: %w", err)
	}
	return valuesIn(path, text)
}

// valuesIn returns the values in a job's YAML by the names of JobSpec's fields. name is the text's,
// for errors.
func valuesIn(name string, text []byte) (map[string]string, error) {
	if _, err := jobspec.FromYAML(name, text); err != nil {
		return nil, err
	}
	var keys map[string]any
	asWritten := func(d *json.Decoder) *json.Decoder {
		d.UseNumber()
		return d
	}
	if err := yaml.UnmarshalStrict(text, &keys, asWritten); err != nil {
		return nil, app.Usagef("%s: %w", name, err)
	}
	said := map[string]string{}
	fields := (&rondov1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	for key, value := range keys {
		field := fields.ByJSONName(key)
		if field == nil {
			field = fields.ByName(protoreflect.Name(strings.ReplaceAll(key, "-", "_")))
		}
		said[string(field.Name())] = fmt.Sprint(value)
	}
	return said, nil
}

// over returns old options with the changes of the given flags.
func (f *SubmissionFlags) over(old Options) Options {
	given, merged := reflect.ValueOf(f.given), reflect.ValueOf(&old).Elem()
	for i := range given.NumField() {
		flag, _, _ := strings.Cut(given.Type().Field(i).Tag.Get("json"), ",")
		if f.set.Changed(flag) {
			merged.Field(i).Set(given.Field(i))
		}
	}
	return old
}

// jobFlags returns the flag of each JobSpec field that a person can set.
func jobFlags() map[string]string {
	flags := map[string]string{}
	fields := (&rondov1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if name := string(fields.Get(i).Name()); name != "submitted" {
			flags[name] = strings.ReplaceAll(name, "_", "-")
		}
	}
	return flags
}

// job returns the submission's JobSpec, with better defaults for Kubernetes. It is not validated,
// because locations may still be those that only a cluster knows.
func (s *Submission) job() (*rondov1.JobSpec, error) {
	keys := map[string]string{"pause_timeout": defaultPause, "ring_order": "spread",
		"threads": strconv.FormatInt(s.wholeCPUs(), 10)}
	if s.GPUsPerWorker > 0 {
		keys["ring_order"], keys["device"] = "adjacent", "cuda"
	}
	maps.Copy(keys, s.Spec)
	text, err := json.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("the job cannot be written as JSON: %w", err)
	}
	return jobspec.FromYAML("the submission", text)
}
