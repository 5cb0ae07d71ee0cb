package kube

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/telemetry"
)

// Defaults of a submission.
const (
	defaultStorage  = "2Gi"
	defaultS3Secret = "rondo-s3"
	defaultPause    = "720h" // a job that waits for nodes or a queue may wait for weeks
	defaultTTL      = "1h"
	never           = "never"
	ephemeral       = "ephemeral"
)

// MaxName is the longest name of a job. Pods' names add to it.
const MaxName = 40

// CheckName fails if objects and host names cannot begin with the job's name.
func CheckName(job string) error {
	if len(job) > MaxName {
		return app.Usagef("--job %s has %d letters: Kubernetes leaves room for %d", job, len(job),
			MaxName)
	}
	if len(validation.IsDNS1035Label(job)) > 0 {
		return app.Usagef("--job %q is no name for Kubernetes: use small letters, digits and -, "+
			"beginning with a letter and not ending with -", job)
	}
	return nil
}

// cpus returns a worker's CPUs. With a GPU one thread computes and another waits for text.
func (s *Submission) cpus() string {
	switch {
	case s.CPUsPerWorker != "":
		return s.CPUsPerWorker
	case s.GPUsPerWorker > 0:
		return "2"
	}
	return "1"
}

// wholeCPUs returns the number of threads for a worker's CPUs.
func (s *Submission) wholeCPUs() int64 {
	cpus, err := resource.ParseQuantity(s.cpus())
	if err != nil {
		return 1 // validate says what is wrong
	}
	return max(1, cpus.Value()) // rounded up
}

// validate fails on options that cannot work on any cluster.
func (s *Submission) validate() error {
	for _, check := range []func() error{
		s.validateImage, s.validateSizes, s.validateDevice, s.validateEtcd, s.validateLabels,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := cmp.Or(validateLife(s), validatePods(s)); err != nil {
		return err
	}
	for _, named := range []struct{ flag, name string }{{"queue", s.Queue},
		{"s3-secret", s.S3Secret}, {"image-pull-secret", s.ImagePullSecret},
		{"priority-class", s.PriorityClass}} {
		if named.name != "" && len(validation.IsDNS1123Subdomain(named.name)) > 0 {
			return app.Usagef("--%s %q is no name of an object: use small letters, digits, - and .",
				named.flag, named.name)
		}
	}
	for _, cidr := range s.S3CIDR {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return app.Usagef("--s3-cidr %q is no block of addresses, such as 192.0.2.0/24", cidr)
		}
	}
	if _, err := tolerations(s.Tolerations); err != nil {
		return err
	}
	if s.LogFormat != "" && !slices.Contains(telemetry.LogFormats(), s.LogFormat) {
		return app.Usagef("--log-format %q is not one of %s", s.LogFormat,
			strings.Join(telemetry.LogFormats(), ", "))
	}
	return nil
}

// validateImage checks only the form. Only the nodes know whether the image exists.
func (s *Submission) validateImage() error {
	switch corev1.PullPolicy(s.ImagePullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return app.Usagef("--image-pull-policy %q is not one of Always, IfNotPresent, Never",
			s.ImagePullPolicy)
	}
	if s.Image != "" && !imagePattern.MatchString(s.Image) {
		return app.Usagef("--image %q is no image: give [REGISTRY/]NAME[:TAG][@DIGEST]", s.Image)
	}
	return nil
}

// imagePattern matches the name, tag and digest of an image.
var imagePattern = regexp.MustCompile(`^((?:[a-zA-Z0-9.-]+(?::[0-9]+)?/)?` +
	`[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)` +
	`(?::([\w][\w.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?$`)

func (s *Submission) validateSizes() error {
	for _, asked := range []struct{ flag, size string }{
		{"cpus-per-worker", s.CPUsPerWorker}, {"memory-per-worker", s.MemoryPerWorker},
	} {
		if asked.size == "" {
			continue
		}
		q, err := resource.ParseQuantity(asked.size)
		if err != nil || q.Sign() <= 0 {
			return app.Usagef("--%s %q is no size above 0, such as 2, 500m or 2Gi", asked.flag,
				asked.size)
		}
	}
	if s.GracePeriod != "" {
		grace, err := time.ParseDuration(s.GracePeriod)
		if err != nil || grace < time.Second {
			return app.Usagef("--grace-period %q is no time of a second or more, such as 90s or 5m",
				s.GracePeriod)
		}
	}
	if q, err := resource.ParseQuantity(s.MemoryPerWorker); err == nil && q.Value() < leastMemory {
		return app.Usagef("--memory-per-worker %s is less than a worker needs to start: give at "+
			"least %dMi (2Gi is two gibibytes)", s.MemoryPerWorker, leastMemory>>20)
	}
	return nil
}

// leastMemory of a worker: a number without its unit is the usual mistake.
const leastMemory = 32 << 20

func (s *Submission) validateDevice() error {
	device := s.Spec["device"]
	gpu := device == "cuda" || strings.HasPrefix(device, "cuda:")
	switch {
	case s.GPUsPerWorker < 0 || s.GPUsPerWorker > 1:
		return app.Usagef("--gpus-per-worker %d: a worker computes on one GPU; give 1, and a "+
			"worker for each GPU (--workers)", s.GPUsPerWorker)
	case gpu && s.GPUsPerWorker == 0:
		return app.Usagef("--device %s needs --gpus-per-worker 1: without it pods get no GPU",
			device)
	case jobspec.OfGPUs(s.Spec["precision"]) && s.GPUsPerWorker == 0:
		return app.Usagef("--precision %s needs GPUs: give --gpus-per-worker 1, or --precision "+
			"fp32 or bf16", s.Spec["precision"])
	case gpu && device != "cuda" && device != "cuda:0":
		return app.Usagef("--device %s: a pod sees no GPU but its own, which is cuda:0 there: "+
			"give --device cuda, or leave it out", device)
	case device == "cpu" && s.GPUsPerWorker > 0:
		return app.Usagef("--device cpu leaves the GPUs of --gpus-per-worker unused: leave out " +
			"one of the two")
	}
	return nil
}

func (s *Submission) validateEtcd() error {
	switch {
	case s.TLS && s.Insecure:
		return app.Usagef("--tls and --insecure: leave out one of the two")
	case len(s.Etcd) > 0 && !s.TLS && !s.Insecure:
		return app.Usagef("--etcd names an etcd of your own: say by --tls or --insecure whether " +
			"it serves TLS")
	}
	if len(s.Etcd) > 0 && s.EtcdStorage != defaultStorage {
		return app.Usagef("--etcd-storage is for the etcd that submit makes, and --etcd names " +
			"another: leave out one of the two")
	}
	for _, endpoint := range s.Etcd {
		address := endpoint
		if _, after, url := strings.Cut(endpoint, "://"); url {
			address = after
		}
		host, port, err := net.SplitHostPort(address)
		n, bad := strconv.Atoi(port)
		if err != nil || host == "" || bad != nil || n < 1 || n > 65535 {
			return app.Usagef("--etcd %q is not host:port, such as etcd.infra:2379", endpoint)
		}
	}
	if s.EtcdStorage == ephemeral {
		return nil
	}
	class, size := storage(s.EtcdStorage)
	q, err := resource.ParseQuantity(size)
	if err != nil || q.Sign() <= 0 ||
		class != "" && len(validation.IsDNS1123Subdomain(class)) > 0 {
		return app.Usagef("--etcd-storage %q is not ephemeral, a size such as 2Gi, or CLASS:SIZE",
			s.EtcdStorage)
	}
	return nil
}

// storage splits CLASS:SIZE.
func storage(text string) (class, size string) {
	if class, size, both := strings.Cut(text, ":"); both {
		return class, size
	}
	return "", text
}

// validateLabels checks labels and node selectors by Kubernetes' rules.
func (s *Submission) validateLabels() error {
	for _, given := range []struct {
		flag   string
		labels map[string]string
	}{{"labels", s.Labels}, {"node-selector", s.NodeSelector}} {
		for _, name := range slices.Sorted(maps.Keys(given.labels)) {
			value := given.labels[name]
			problems := slices.Concat(validation.IsQualifiedName(name),
				validation.IsValidLabelValue(value))
			if len(problems) > 0 {
				return app.Usagef("--%s %s=%s is no label: %s", given.flag, name, value,
					problems[0])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Labels)) {
		if strings.HasPrefix(name, "rondo.dev/") || strings.HasPrefix(name, "app.kubernetes.io/") {
			return app.Usagef("--labels %s: Rondo sets these labels itself: choose another name",
				name)
		}
	}
	return nil
}

// tolerations parses KEY[=VALUE][:EFFECT].
func tolerations(texts []string) ([]corev1.Toleration, error) {
	var all []corev1.Toleration
	for _, text := range texts {
		key, effect, _ := strings.Cut(text, ":")
		t := corev1.Toleration{Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffect(effect)}
		if name, value, exact := strings.Cut(key, "="); exact {
			key, t.Operator, t.Value = name, corev1.TolerationOpEqual, value
		}
		t.Key = key
		switch t.Effect {
		case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
			corev1.TaintEffectNoExecute:
		default:
			return nil, app.Usagef("--toleration %q: %q is not one of NoSchedule, "+
				"PreferNoSchedule, NoExecute", text, effect)
		}
		if len(validation.IsQualifiedName(key)) > 0 ||
			len(validation.IsValidLabelValue(t.Value)) > 0 {
			return nil, app.Usagef("--toleration %q is not KEY[=VALUE][:EFFECT]", text)
		}
		all = append(all, t)
	}
	return all, nil
}
