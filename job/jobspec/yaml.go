package jobspec

import (
	"bytes"

	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	rondov1 "rondo/proto/rondo/v1"
)

// ToYAML writes a job's YAML in the order of the flags: the keys that differ from the defaults or
// from those that resolve derives, and those whose flag says always. FromYAML reads the same job
// from it, except for `submitted`, which has no flag.
func ToYAML(spec *rondov1.JobSpec) ([]byte, error) {
	var out bytes.Buffer
	plain, given := Default().ProtoReflect(), needed(spec)
	for _, f := range fields() {
		value := spec.ProtoReflect().Get(f.desc)
		if !f.flag.Always && !given[f.desc.Name()] &&
			f.format(value) == f.format(plain.Get(f.desc)) {
			continue
		}
		scalar := value.Interface()
		if f.desc.Kind() == protoreflect.MessageKind {
			scalar = f.format(value)
		}
		line, err := yaml.Marshal(map[string]any{string(f.desc.Name()): scalar})
		if err != nil {
			return nil, usagef("--%s %q cannot be written as YAML: %v", f.flagName(),
				f.format(value), err)
		}
		out.Write(line)
	}
	return out.Bytes(), nil
}
