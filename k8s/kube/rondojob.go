package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// A rondoJob is the custom resource of a job. An operator submits it, as `rondo submit` would, and
// writes its status.
type rondoJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Spec has the submission's options in camel case, and the fields below.
	Spec   map[string]any `json:"spec"`
	Status rondoJobStatus `json:"status,omitzero"`
}

// Fields of a RondoJob's spec besides the submission's options.
const (
	specJob      = "job"      // the keys of `rondo train --config`
	specReplicas = "replicas" // the number of workers; over the job's key workers
	specSuspend  = "suspend"
	specTemplate = "podTemplate" // an option, but an object and not a file's text
)

func rondoJobKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind("rondo.dev/v1alpha1", "RondoJob")
}

// rondoJobIn reads a RondoJob.
func rondoJobIn(object *unstructured.Unstructured) (*rondoJob, error) {
	r := &rondoJob{}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, r)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", nameOf(object), err)
	}
	return r, nil
}

// owner returns the reference to the RondoJob as the owner of its record.
func (r *rondoJob) owner() metav1.OwnerReference {
	return *metav1.NewControllerRef(r, rondoJobKind())
}

// fixedSpec returns the part of a spec that a run keeps from its beginning to its end.
func fixedSpec(spec map[string]any) map[string]any {
	fixed := maps.Clone(spec)
	delete(fixed, specReplicas)
	delete(fixed, specSuspend)
	return fixed
}

// suspended reports whether the spec asks for a suspended job.
func (r *rondoJob) suspended() bool {
	suspended, _, _ := unstructured.NestedBool(r.Spec, specSuspend)
	return suspended
}

// optionOf returns a flag in camel case, as a RondoJob's spec names it.
func optionOf(flag string) string {
	words := strings.Split(flag, "-")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// specOptions returns the fields of Options by their names in a RondoJob's spec. Where a flag has a
// short form of what Kubernetes has a form for, podTemplate has that form.
func specOptions() map[string]reflect.StructField {
	options := map[string]reflect.StructField{}
	all := reflect.TypeFor[Options]()
	for i := range all.NumField() {
		field := all.Field(i)
		flag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !slices.Contains([]string{"env", "toleration"}, flag) {
			options[optionOf(flag)] = field
		}
	}
	return options
}

// submission returns the submission that the spec describes. image is the default one.
func (r *rondoJob) submission(image string) (*Submission, error) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddSubmissionFlags(set)
	s := &Submission{Options: flags.given} // the defaults
	s.Image = image
	err := r.readOptions(&s.Options)
	if err == nil {
		s.Spec, err = r.readJob()
	}
	for _, check := range []func() error{
		s.validate, s.CheckKept, func() error { return checkReachable(s) },
		func() error { return checkJob(s) },
	} {
		if err == nil {
			err = check()
		}
	}
	if err != nil {
		return nil, errors.New(flags.inFields(err.Error()))
	}
	return s, nil
}

// readOptions reads the options.
func (r *rondoJob) readOptions(to *Options) error {
	options, known := map[string]any{}, specOptions()
	for name, value := range r.Spec {
		field, is := known[name]
		flag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		_, isBool := value.(bool)
		switch {
		case name == specTemplate:
			text, err := json.Marshal(value)
			if err != nil {
				return err
			}
			if len(text) > maxTemplate {
				return fmt.Errorf("spec.%s has %d bytes, and at most %d are kept with the job",
					name, len(text), maxTemplate)
			}
			if _, err := parseTemplate(string(text)); err != nil {
				return err
			}
			options[flag] = string(text)
		case is && isBool && field.Type.Kind() == reflect.String: // it need not be given a value
			options[flag] = fmt.Sprint(value)
		case is:
			options[flag] = value
		case name != specJob && name != specReplicas && name != specSuspend:
			return fmt.Errorf("spec.%s is no field of a RondoJob%s", name, near(name, known))
		}
	}
	text, err := json.Marshal(options)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(text, to)
}

// near suggests a field for one that does not exist.
func near(name string, known map[string]reflect.StructField) string {
	if meant := jobspec.Nearest(name, slices.Sorted(maps.Keys(known))); meant != "" {
		return ", did you mean " + meant + "?"
	}
	return ""
}

// readJob reads the job's keys. The name is the RondoJob's.
func (r *rondoJob) readJob() (map[string]string, error) {
	keys, _, err := unstructured.NestedMap(r.Spec, specJob)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	values, err := valuesIn("spec.job", text)
	if err != nil {
		return nil, err
	}
	if name := values["job"]; name != "" && name != r.Name {
		return nil, fmt.Errorf("spec.job.job %s is not the RondoJob's name, %s: leave it out", name,
			r.Name)
	}
	values["job"] = r.Name
	if n, given, _ := unstructured.NestedInt64(r.Spec, specReplicas); given {
		values["workers"] = fmt.Sprint(n)
	}
	return values, nil
}

// checkReachable fails on texts that would be read from the disk of the process that submits.
func checkReachable(s *Submission) error {
	for _, key := range []string{"corpus", "eval_corpus", "vectors", "tokenizer"} {
		file := s.Spec[key]
		if key == "tokenizer" {
			file = jobspec.TokenizerFile(&rondov1.JobSpec{Tokenizer: file})
		}
		if isLocal(file) {
			return fmt.Errorf("spec.job.%s %s: a RondoJob brings no files along: give "+
				"configmap://NAME/KEY, pvc://CLAIM/PATH, a bucket's URL or builtin:opticks", key, file)
		}
	}
	return nil
}

// checkJob checks the job as Render does.
func checkJob(s *Submission) error {
	spec, err := s.job()
	if err != nil {
		return err
	}
	if err := CheckName(spec.Job); err != nil {
		return err
	}
	if _, err := place(spec); err != nil {
		return err
	}
	return jobspec.Validate(spec)
}

var flagInText = regexp.MustCompile(`--[a-z][a-z0-9-]*`)

// inFields replaces flags in an error's text by the fields of a RondoJob.
func (f *SubmissionFlags) inFields(text string) string {
	options := specOptions()
	return flagInText.ReplaceAllStringFunc(text, func(given string) string {
		flag := strings.TrimPrefix(given, "--")
		switch _, option := options[optionOf(flag)]; {
		case flag == "job":
			return "metadata.name"
		case flag == "workers":
			return "spec." + specReplicas
		case f.jobs[flag]:
			return "spec.job." + strings.ReplaceAll(flag, "-", "_")
		case option:
			return "spec." + optionOf(flag)
		}
		return given
	})
}

// changedFields lists the fields that differ between two specs, those of the job by their keys.
func changedFields(before, now map[string]any) []string {
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(merged(before, now))) {
		old, isMap := before[name].(map[string]any)
		new, also := now[name].(map[string]any)
		switch {
		case name == specJob && isMap && also:
			for _, key := range changedFields(old, new) {
				changed = append(changed, specJob+"."+key)
			}
		case !reflect.DeepEqual(before[name], now[name]):
			changed = append(changed, name)
		}
	}
	return changed
}

func merged(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, b)
	return all
}
