package jobspec

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	rondov1 "rondo/proto/rondo/v1"
)

// Flags are the flags of a job, one for each field of JobSpec.
type Flags struct {
	set    *pflag.FlagSet
	given  *rondov1.JobSpec
	config string
}

// AddFlags defines the flags of a job on set, and --config for the YAML file.
func AddFlags(set *pflag.FlagSet) *Flags {
	flags := &Flags{set: set, given: Default()}
	set.StringVar(&flags.config, "config", "",
		"YAML file of the job; keys are the flags' names with _ for -")
	for _, f := range fields() {
		help := f.flag.Help
		if choices := f.flag.Choices; len(choices) > 0 {
			help += ": " + strings.Join(choices, "|")
		}
		value := &flagValue{field: f, spec: flags.given.ProtoReflect()}
		added := set.VarPF(value, f.flagName(), "", help)
		if f.desc.Kind() == protoreflect.BoolKind {
			added.NoOptDefVal = "true"
		}
	}
	return flags
}

// Spec returns the job: the defaults, over them the YAML file if --config names one, over it the
// flags that were given; validated.
func (f *Flags) Spec() (*rondov1.JobSpec, error) {
	spec := Default()
	if f.config != "" {
		text, err := os.ReadFile(f.config)
		if err != nil {
			return nil, usagef("--config: %v", err)
		}
		if spec, err = FromYAML(f.config, text); err != nil {
			return nil, err
		}
	}
	for _, field := range fields() {
		if f.set.Changed(field.flagName()) {
			spec.ProtoReflect().Set(field.desc, f.given.ProtoReflect().Get(field.desc))
		}
	}
	return spec, Validate(spec)
}

// FromYAML reads a job's YAML over the defaults; name is the file's, for errors. It does not
// validate.
func FromYAML(name string, text []byte) (*rondov1.JobSpec, error) {
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, usagef("%s: not valid YAML: %v", name, err)
	}
	merged, err := asObject(Default())
	if err != nil {
		return nil, err
	}
	// A key takes either spelling; it replaces the default under whichever name that has.
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(object, &keys); err != nil {
		return nil, usagef("%s: the top level is not a mapping of flags to values", name)
	}
	descriptor := (&rondov1.JobSpec{}).ProtoReflect().Descriptor()
	for key, value := range keys {
		desc := descriptor.Fields().ByName(protoreflect.Name(strings.ReplaceAll(key, "-", "_")))
		if desc == nil {
			desc = descriptor.Fields().ByJSONName(key)
		}
		if desc == nil {
			return nil, usagef("%s: unknown key %q; the keys are the flags of `rondo train`",
				name, key)
		}
		merged[string(desc.Name())] = value
	}
	all, err := json.Marshal(merged)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	spec := &rondov1.JobSpec{}
	if err := protojson.Unmarshal(all, spec); err != nil {
		return nil, usagef("%s: %s", name, protojsonReason(err))
	}
	return spec, nil
}

// asObject returns the spec's fields as JSON values by proto name.
func asObject(spec *rondov1.JobSpec) (map[string]json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("jobspec: %w", err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("jobspec: %w", err)
	}
	return object, nil
}

// protojsonReason strips the prefix that protojson varies on purpose between builds.
func protojsonReason(err error) string {
	text := err.Error()
	if i := strings.Index(text, ": "); i >= 0 && strings.HasPrefix(text, "proto:") {
		text = text[i+2:]
	}
	return strings.TrimSpace(strings.TrimPrefix(text, "proto:"))
}

// flagValue is a pflag.Value that writes a field of the spec.
type flagValue struct {
	field field
	spec  protoreflect.Message
}

func (v *flagValue) Set(text string) error {
	value, err := v.field.parse(text)
	if err == nil {
		err = v.field.check(value)
	}
	if err != nil {
		return err
	}
	v.spec.Set(v.field.desc, value)
	return nil
}

func (v *flagValue) String() string {
	if v.spec == nil {
		return ""
	}
	return v.field.format(v.spec.Get(v.field.desc))
}

func (v *flagValue) Type() string {
	switch v.field.desc.Kind() {
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		return "int"
	case protoreflect.DoubleKind:
		return "float"
	case protoreflect.MessageKind:
		return "duration"
	case protoreflect.BoolKind:
		return "bool"
	}
	return "string"
}
