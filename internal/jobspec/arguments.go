package jobspec

import (
	"google.golang.org/protobuf/reflect/protoreflect"

	rondov1 "rondo/proto/rondo/v1"
)

// Arguments are the flags with which `rondo train` runs a job: those that differ from the defaults.
func Arguments(spec *rondov1.JobSpec) []string {
	var out []string
	plain := Default().ProtoReflect()
	for _, f := range fields() {
		text := f.format(spec.ProtoReflect().Get(f.desc))
		switch {
		case text == f.format(plain.Get(f.desc)):
		case f.desc.Kind() == protoreflect.BoolKind:
			out = append(out, "--"+f.flagName()+"="+text)
		default:
			out = append(out, "--"+f.flagName(), text)
		}
	}
	return out
}
