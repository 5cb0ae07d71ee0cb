package jobspec

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	rondov1 "rondo/proto/rondo/v1"
)

// others returns values of a field that are hard to write down, none of which is its default.
func others(t *testing.T, f field) []protoreflect.Value {
	t.Helper()
	var all []protoreflect.Value
	switch f.desc.Kind() {
	case protoreflect.StringKind:
		for _, text := range []string{"x", "", "true", "~", "0x1f", "1e3", "2001-01-01", " a ",
			"a: b # c", "- a", "two\nlines", "ends\n\n", "\ttab", `"quoted'`, "{}", "\u2028",
			"s3://b/k?endpoint=http://h:1&use_path_style=true", "Γειά 𝄞", "<<", "&a *a !b %c @d"} {
			all = append(all, protoreflect.ValueOfString(text))
		}
	case protoreflect.BoolKind:
		all = []protoreflect.Value{protoreflect.ValueOfBool(true), protoreflect.ValueOfBool(false)}
	case protoreflect.Int64Kind:
		for _, n := range []int64{0, -7, 12, math.MaxInt64, math.MinInt64} {
			all = append(all, protoreflect.ValueOfInt64(n))
		}
	case protoreflect.Uint64Kind:
		for _, n := range []uint64{0, 12, math.MaxUint64, 1<<53 + 1} {
			all = append(all, protoreflect.ValueOfUint64(n))
		}
	case protoreflect.DoubleKind:
		for _, x := range []float64{0, -1, 0.1, 1e-30, math.MaxFloat64, 1e6, 1e21, 1.0 / 3} {
			all = append(all, protoreflect.ValueOfFloat64(x))
		}
	case protoreflect.MessageKind:
		for _, d := range []time.Duration{1, time.Hour, 1500 * time.Millisecond, 0} {
			all = append(all, protoreflect.ValueOfMessage(durationpb.New(d).ProtoReflect()))
		}
	default:
		t.Fatalf("--%s is of kind %v: say here what values to try", f.flagName(), f.desc.Kind())
	}
	usual := f.format(Default().ProtoReflect().Get(f.desc))
	all = slices.DeleteFunc(all, func(v protoreflect.Value) bool { return f.format(v) == usual })
	if len(all) == 0 {
		t.Fatalf("--%s has no value but its default", f.flagName())
	}
	return all
}

// differing are the keys of a job's YAML whose values are not the defaults.
func differing(t *testing.T, text string) (keys []string) {
	t.Helper()
	usual, err := ToYAML(Default())
	if err != nil {
		t.Fatal(err)
	}
	usually := map[string]bool{}
	for line := range strings.Lines(string(usual)) {
		usually[line] = true
	}
	for line := range strings.Lines(text) {
		key, _, isKey := strings.Cut(line, ":")
		if isKey && !usually[line] && key[0] >= 'a' && key[0] <= 'z' {
			keys = append(keys, key)
		}
	}
	return keys
}

// through writes a spec as YAML and reads it again.
func through(t *testing.T, spec *rondov1.JobSpec) string {
	t.Helper()
	text, err := ToYAML(spec)
	if err != nil {
		t.Fatal(err)
	}
	got, err := FromYAML("job.yaml", text)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	if !proto.Equal(got, spec) {
		t.Fatalf("got  %v\nwant %v\nthrough:\n%s", got, spec, text)
	}
	return string(text)
}

// TestToYAMLKeepsEveryField gives each field every one of its values, alone and with all others.
func TestToYAMLKeepsEveryField(t *testing.T) {
	values := map[string][]protoreflect.Value{}
	longest := 0
	for _, f := range fields() {
		name := string(f.desc.Name())
		values[name] = others(t, f)
		longest = max(longest, len(values[name]))
		for _, v := range values[name] {
			spec := Default()
			spec.ProtoReflect().Set(f.desc, v)
			if name == "lr" && spec.Lr == 0 {
				continue // the optimizer's own: no spec has it
			}
			text := through(t, spec)
			if keys := differing(t, text); len(keys) == 0 || keys[0] != name {
				t.Errorf("%s is not the one key that differs in:\n%s", name, text)
			}
		}
	}
	for i := range longest {
		spec := Default()
		at := 0
		for _, f := range fields() {
			v := values[string(f.desc.Name())]
			spec.ProtoReflect().Set(f.desc, v[i%len(v)])
		}
		if spec.Lr == 0 {
			spec.Lr = 1
		}
		text := through(t, spec)
		for _, f := range fields() { // in the order of the flags
			next := strings.Index("\n"+text[at:], "\n"+string(f.desc.Name())+":")
			if next < 0 {
				t.Fatalf("%s is missing or out of order in:\n%s", f.desc.Name(), text)
			}
			at += next
		}
	}
}

// TestToYAMLForgetsNoField: every field has a flag, and so a key, but for those named here.
func TestToYAMLForgetsNoField(t *testing.T) {
	withKey := map[protoreflect.Name]bool{"submitted": true, "corpus_files": true}
	for _, f := range fields() {
		withKey[f.desc.Name()] = true
	}
	all := (&rondov1.JobSpec{}).ProtoReflect().Descriptor().Fields()
	for i := range all.Len() {
		if name := all.Get(i).Name(); !withKey[name] {
			t.Errorf("%s has no flag: a job that is sent as YAML would lose it", name)
		}
	}
}

// TestToYAMLOfDefaults: a job's YAML says what is trained, also where that is the default: the
// pods that read it may be of a version with other defaults.
func TestToYAMLOfDefaults(t *testing.T) {
	const usual = "tokenizer: char\nnormalize: none\nvalidation_fraction: 0.1\n" +
		"layers: 2\ndropout: 0.4\noptimizer: adam\n" +
		"lr: 0.003\nlr_schedule: cosine\nepochs: 30\n"
	if text := through(t, Default()); text != usual {
		t.Errorf("the defaults are written as %q", text)
	}
	spec := Default()
	spec.Hidden, spec.Corpus, spec.LeaseTtl = 512, "s3://bucket/text", durationpb.New(time.Minute)
	const want = "corpus: s3://bucket/text\ntokenizer: char\nnormalize: none\n" +
		"validation_fraction: 0.1\nhidden: 512\nlayers: 2\n" +
		"dropout: 0.4\noptimizer: adam\nlr: 0.003\nlr_schedule: cosine\nepochs: 30\n" +
		"lease_ttl: 1m0s\n"
	if text := through(t, spec); text != want {
		t.Errorf("got %q, want %q", text, want)
	}
}

func TestToYAMLRefusesWhatYAMLCannotSay(t *testing.T) {
	spec := Default()
	spec.Lr = math.Inf(1)
	if _, err := ToYAML(spec); err == nil || !strings.HasPrefix(err.Error(), `--lr "+Inf" `) {
		t.Errorf("error %v", err)
	}
}

func FuzzToYAML(f *testing.F) {
	f.Add("a: b", "c\n")
	f.Fuzz(func(t *testing.T, corpus, prefix string) {
		spec := Default()
		spec.Corpus, spec.SamplePrefix = strings.ToValidUTF8(corpus, ""),
			strings.ToValidUTF8(prefix, "")
		text, err := ToYAML(spec)
		if err != nil {
			return
		}
		got, err := FromYAML("job.yaml", text)
		if err != nil || !proto.Equal(got, spec) {
			t.Errorf("%v: %q, %q became %v through:\n%s", err, spec.Corpus, spec.SamplePrefix,
				got, text)
		}
	})
}
