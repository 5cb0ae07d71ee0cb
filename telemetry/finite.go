package telemetry

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
)

// finite returns e if all its floats are finite. Otherwise it returns a value that marshals the
// others as null.
func finite(e Event) any {
	v := reflect.ValueOf(e)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Float64 && !isFinite(f.Float()) {
			return ordered{v}
		}
	}
	return e
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// ordered marshals a struct's fields in order. Floats that are not finite become null.
type ordered struct{ v reflect.Value }

func (o ordered) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i := range o.v.NumField() {
		f := o.v.Field(i)
		name, options, _ := strings.Cut(o.v.Type().Field(i).Tag.Get("json"), ",")
		if name == "-" || options == "omitempty" && f.IsZero() {
			continue
		}
		value := []byte("null")
		if f.Kind() != reflect.Float64 || isFinite(f.Float()) {
			var err error
			if value, err = json.Marshal(f.Interface()); err != nil {
				return nil, err
			}
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = append(out, name...)
		out = append(out, '"', ':')
		out = append(out, value...)
	}
	return append(out, '}'), nil
}
