package jobspec

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"rondo/compute"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
)

// parse converts text to a value of the field's kind.
func (f field) parse(text string) (protoreflect.Value, error) {
	fail := func(what string) (protoreflect.Value, error) {
		return protoreflect.Value{}, usagef("--%s %q is not %s", f.flagName(), text, what)
	}
	switch f.desc.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), nil
	case protoreflect.BoolKind:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return fail("true or false")
		}
		return protoreflect.ValueOfBool(v), nil
	case protoreflect.Int64Kind:
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fail("a whole number")
		}
		return protoreflect.ValueOfInt64(v), nil
	case protoreflect.Uint64Kind:
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fail("a whole number of at least 0")
		}
		return protoreflect.ValueOfUint64(v), nil
	case protoreflect.DoubleKind:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fail("a number")
		}
		return protoreflect.ValueOfFloat64(v), nil
	case protoreflect.MessageKind:
		v, err := time.ParseDuration(text)
		if err != nil {
			return fail("a duration such as 10s or 5m")
		}
		return protoreflect.ValueOfMessage(durationpb.New(v).ProtoReflect()), nil
	}
	panic(fmt.Sprintf("jobspec: field %s has kind %v", f.desc.Name(), f.desc.Kind()))
}

// choices are a string's allowed values; none: any. Tasks and cells have their own tables.
func (f field) choices() []string {
	switch f.desc.Name() {
	case "task":
		return task.Names()
	case "cell":
		return compute.CellNames()
	}
	return f.flag.Choices
}

// check compares a value with the field's choices and bounds.
func (f field) check(value protoreflect.Value) error {
	switch f.desc.Kind() {
	case protoreflect.StringKind:
		if f.desc.Name() == "tokenizer" {
			return checkTokenizer(value.String())
		}
		if n := f.choices(); len(n) > 0 && !slices.Contains(n, value.String()) {
			return usagef("--%s %q is not one of %s", f.flagName(), value.String(),
				strings.Join(n, ", "))
		}
		return nil
	case protoreflect.Int64Kind:
		return f.checkBounds(float64(value.Int()))
	case protoreflect.DoubleKind:
		return f.checkBounds(value.Float())
	case protoreflect.MessageKind:
		if d := duration(value); d <= 0 {
			return usagef("--%s %v must be positive", f.flagName(), d)
		}
		return nil
	case protoreflect.BoolKind, protoreflect.Uint64Kind:
		return nil
	}
	panic(fmt.Sprintf("jobspec: field %s has kind %v", f.desc.Name(), f.desc.Kind()))
}

func (f field) checkBounds(v float64) error {
	write := func(x float64) string {
		if x == math.Trunc(x) && math.Abs(x) < 1e15 {
			return strconv.FormatFloat(x, 'f', -1, 64)
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	text := write(v)
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return usagef("--%s %s is not finite", f.flagName(), text)
	}
	if f.flag.Min != nil && v < f.flag.GetMin() {
		return usagef("--%s %s is below its least value, %s", f.flagName(), text,
			write(f.flag.GetMin()))
	}
	if f.flag.Max != nil && v > f.flag.GetMax() {
		return usagef("--%s %s is above its greatest value, %s", f.flagName(), text,
			write(f.flag.GetMax()))
	}
	return nil
}

// format is the inverse of parse.
func (f field) format(value protoreflect.Value) string {
	switch f.desc.Kind() {
	case protoreflect.MessageKind:
		return duration(value).String()
	case protoreflect.DoubleKind:
		return strconv.FormatFloat(value.Float(), 'g', -1, 64)
	}
	return value.String()
}

func duration(value protoreflect.Value) time.Duration {
	message := value.Message().Interface()
	d, ok := message.(*durationpb.Duration)
	if !ok {
		panic(fmt.Sprintf("jobspec: %T is not a duration", message))
	}
	return d.AsDuration()
}

// RunOf returns the run's number in a stored spec; 0 if it has none or cannot be read.
func RunOf(stored []byte) int64 {
	spec := &rondov1.JobSpec{}
	if err := proto.Unmarshal(stored, spec); err != nil {
		return 0
	}
	return spec.Submitted
}
