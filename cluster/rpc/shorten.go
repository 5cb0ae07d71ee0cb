package rpc

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	rondov1 "rondo/proto/rondo/v1"
)

// shortened returns an event of at most EventLimit bytes: e, or a copy in which the end of the
// longest text is missing. Its other fields are few and short.
func shortened(e *rondov1.Event) *rondov1.Event {
	excess := proto.Size(e) - EventLimit
	if excess <= 0 {
		return e
	}
	e = proto.CloneOf(e)
	var kind protoreflect.Message
	e.ProtoReflect().Range(func(_ protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		kind = v.Message() // an event has one kind
		return false
	})
	var longest protoreflect.FieldDescriptor
	kind.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.Kind() == protoreflect.StringKind &&
			(longest == nil || len(v.String()) > len(kind.Get(longest).String())) {
			longest = f
		}
		return true
	})
	if longest == nil {
		return e
	}
	const mark = "…"
	text := kind.Get(longest).String()
	text = text[:max(0, len(text)-excess-len(mark))]
	// A character may have been cut; gRPC sends valid UTF-8 only.
	kind.Set(longest, protoreflect.ValueOfString(strings.ToValidUTF8(text, "")+mark))
	return e
}
