package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"

	"rondo/job/recipe"
	rondov1 "rondo/proto/rondo/v1"
)

// Flags are a job's flags, one for each field of JobSpec that has the option.
type Flags struct {
	set    *pflag.FlagSet
	given  *rondov1.JobSpec
	config string
	recipe string // --recipe

	said  map[protoreflect.Name]bool            // what the last Spec was given
	count func(*rondov1.JobSpec) (int64, error) // for --workers auto; nil: auto is refused
	auto  bool                                  // --workers auto was given
}

// AddFlags defines the flags of a job on set, and --config for the YAML file.
func AddFlags(set *pflag.FlagSet) *Flags {
	flags := &Flags{set: set, given: unresolved()}
	set.StringVar(&flags.config, "config", "",
		"YAML file of the job; keys are the flags' names with _ for -")
	for _, f := range fields() {
		help := f.flag.Help
		if choices := f.choices(); len(choices) > 0 {
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

// AutoWorkers lets --workers take the word auto. count then returns the number for the job that the
// other flags give.
func (f *Flags) AutoWorkers(count func(*rondov1.JobSpec) (int64, error)) {
	f.count = count
	workers := f.set.Lookup("workers")
	workers.Value = &autoValue{Value: workers.Value, auto: &f.auto}
	workers.Usage += "; auto: one for each GPU, or one on a CPU"
}

// AddRecipe defines --recipe, whose job the flags and the YAML file override.
func (f *Flags) AddRecipe() {
	f.set.StringVar(&f.recipe, "recipe", "", "train as a publication did; rondo recipes lists the "+
		"names, and their expected results. Flags and the keys of --config override the recipe's")
}

// Recipe returns the recipe of --recipe; nil: none.
func (f *Flags) Recipe() (*recipe.Recipe, error) {
	if f.recipe == "" {
		return nil, nil
	}
	r, err := recipe.Find(f.recipe)
	if r == nil && err == nil {
		near := ""
		if name := Nearest(f.recipe, recipe.Names()); name != "" {
			near = fmt.Sprintf(", did you mean %s?", name)
		}
		return nil, usagef("--recipe %q: there is none of this name%s; rondo recipes lists them",
			f.recipe, near)
	}
	return r, err
}

// FromRecipe returns the validated job of a recipe without any flag.
func FromRecipe(r *recipe.Recipe) (*rondov1.JobSpec, error) {
	spec, err := FromYAML("recipe "+r.Name, r.Job)
	if err != nil {
		return nil, err
	}
	return spec, ValidateFields(spec)
}

// autoValue lets a number's flag take the word auto.
type autoValue struct {
	pflag.Value
	auto *bool
}

func (v *autoValue) Set(text string) error {
	if *v.auto = text == "auto"; *v.auto {
		return nil
	}
	return v.Value.Set(text)
}

func (v *autoValue) String() string {
	if *v.auto {
		return "auto"
	}
	return v.Value.String()
}

// Spec returns the validated job. Flags override the YAML file of --config, which overrides the
// recipe and the defaults.
func (f *Flags) Spec() (*rondov1.JobSpec, error) {
	spec, given := unresolved(), map[protoreflect.Name]bool{}
	r, err := f.Recipe()
	if err != nil {
		return nil, err
	}
	if r != nil {
		if err := readYAML("recipe "+r.Name, r.Job, spec, given); err != nil {
			return nil, err
		}
	}
	recipeTask := spec.Task
	if f.config != "" {
		text, err := os.ReadFile(f.config)
		if err != nil {
			return nil, usagef("--config: %v", err)
		}
		if err := readYAML(f.config, text, spec, given); err != nil {
			return nil, err
		}
	}
	for _, field := range fields() {
		if f.set.Changed(field.flagName()) {
			spec.ProtoReflect().Set(field.desc, f.given.ProtoReflect().Get(field.desc))
			given[field.desc.Name()] = true
		}
	}
	if r != nil && spec.Task != recipeTask {
		return nil, usagef("--task %s: recipe %s is for --task %s: leave out one of the two",
			spec.Task, r.Name, recipeTask)
	}
	f.said = given
	resolve(spec, given)
	if f.auto {
		var err error
		if spec.Workers, err = f.count(spec); err != nil {
			return nil, err
		}
	}
	if err := Validate(spec); err != nil {
		return spec, err
	}
	return spec, f.checkRead(spec)
}

// Given reports whether the last Spec had a field by its flag, --config or --recipe.
func (f *Flags) Given(flag string) bool {
	return f.said[protoreflect.Name(strings.ReplaceAll(flag, "-", "_"))]
}

// FromYAML reads a job's YAML over the defaults, without checking bounds. Values are written as for
// flags. name is the file's, for errors.
func FromYAML(name string, text []byte) (*rondov1.JobSpec, error) {
	spec, given := unresolved(), map[protoreflect.Name]bool{}
	if err := readYAML(name, text, spec, given); err != nil {
		return nil, err
	}
	resolve(spec, given)
	return spec, nil
}

// readYAML sets the fields of spec whose keys are in the text, and records them in given.
func readYAML(
	name string, text []byte, spec *rondov1.JobSpec, given map[protoreflect.Name]bool,
) error {
	object, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return usagef("%s: not valid YAML: %v", name, err)
	}
	var keys map[string]any
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber() // so that a number is read as it was written
	if err := decoder.Decode(&keys); err != nil {
		return usagef("%s: the top level is not a mapping of flags to values", name)
	}
	byName := map[string]field{}
	for _, f := range fields() {
		byName[string(f.desc.Name())], byName[f.desc.JSONName()] = f, f
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		f, known := byName[strings.ReplaceAll(key, "-", "_")]
		if !known {
			if near := Nearest(key, slices.Sorted(maps.Keys(byName))); near != "" {
				return usagef("%s: unknown key %q, did you mean %s?", name, key, near)
			}
			return usagef("%s: unknown key %q; the keys are the flags of `rondo train`", name, key)
		}
		switch keys[key].(type) {
		case string, json.Number, bool:
		default:
			return usagef("%s: %s: give one value, as for --%s", name, key, f.flagName())
		}
		value, err := f.parse(fmt.Sprint(keys[key]))
		if err != nil {
			return usagef("%s: %v", name, err)
		}
		spec.ProtoReflect().Set(f.desc, value)
		given[f.desc.Name()] = true
	}
	return nil
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
