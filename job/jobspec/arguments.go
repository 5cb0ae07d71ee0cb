package jobspec

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	rondov1 "rondo/proto/rondo/v1"
)

// Arguments are a job's flags for `rondo train`: those that differ from the defaults and that the
// job reads.
func Arguments(spec *rondov1.JobSpec) []string {
	given := needed(spec)
	var out []string
	for _, f := range fields() {
		text := f.format(spec.ProtoReflect().Get(f.desc))
		switch {
		case !given[f.desc.Name()] || unread(spec, f.desc.Name()) != "":
		case f.desc.Kind() == protoreflect.BoolKind:
			out = append(out, "--"+f.flagName()+"="+text)
		default:
			out = append(out, "--"+f.flagName(), text)
		}
	}
	return out
}

// needed returns the fields that must be given; resolve derives the others.
func needed(spec *rondov1.JobSpec) map[protoreflect.Name]bool {
	given := map[protoreflect.Name]bool{}
	for {
		before := len(given)
		trial := unresolved()
		for _, f := range fields() {
			if given[f.desc.Name()] {
				trial.ProtoReflect().Set(f.desc, spec.ProtoReflect().Get(f.desc))
			}
		}
		resolve(trial, given)
		for _, f := range fields() {
			want := f.format(spec.ProtoReflect().Get(f.desc))
			if f.format(trial.ProtoReflect().Get(f.desc)) != want {
				given[f.desc.Name()] = true // others may follow from it
				break
			}
		}
		if len(given) == before {
			return given
		}
	}
}
