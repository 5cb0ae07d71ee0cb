package meet

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
)

// FuzzDecode: a spec in etcd is valid or an error, and what a worker allows is asked of every
// valid one without harm.
func FuzzDecode(f *testing.F) {
	spec := jobspec.Default()
	for _, change := range []func(*rondov1.JobSpec){
		func(*rondov1.JobSpec) {},
		func(s *rondov1.JobSpec) { s.Corpus = "s3://bucket/x?endpoint=http://elsewhere" },
		func(s *rondov1.JobSpec) { s.Submitted, s.Workers = -1, 1<<40 },
		func(s *rondov1.JobSpec) { s.Inject = "kill rank=* chance=0.5 times=0" },
		func(s *rondov1.JobSpec) { s.LeaseTtl = nil },
	} {
		one := proto.CloneOf(spec)
		change(one)
		text, err := proto.Marshal(one)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	allow := jobspec.Allow{Paths: []string{f.TempDir()}}
	f.Fuzz(func(t *testing.T, text []byte) {
		spec, err := Decode(text)
		if err != nil {
			return
		}
		_ = allow.Check(spec) // an error or none
		if jobspec.RunOf(text) != spec.Submitted {
			t.Errorf("run %d of %v", jobspec.RunOf(text), spec)
		}
		order := proto.MarshalOptions{Deterministic: true}
		once, err := order.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(once)
		if err != nil {
			t.Fatalf("%v: %v", spec, err)
		}
		if twice, err := order.Marshal(again); err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%v became %v, %v", spec, again, err)
		}
	})
}
