package kube

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// definition is the CustomResourceDefinition of RondoJobs, in the tree of manifests.
const definition = "../operator/rondojob.yaml"

// TestDefinition holds the schema of RondoJobs against the flags of `rondo submit`: with -update it
// is written from them.
func TestDefinition(t *testing.T) {
	text, err := yaml.Marshal(rondoJobDefinition())
	check(t, err)
	text = append([]byte("# Made from the flags of rondo submit: go test ./k8s/kube -run "+
		"TestDefinition -update\n"), text...)
	if *update {
		check(t, os.WriteFile(definition, text, 0o644))
	}
	present, err := os.ReadFile(definition)
	check(t, err)
	if !bytes.Equal(present, text) {
		t.Errorf("%s is not what the flags give: go test ./k8s/kube -run TestDefinition -update",
			definition)
	}
}

type object = map[string]any

func rondoJobDefinition() object {
	column := func(name, kind, path string) object {
		return object{"name": name, "type": kind, "jsonPath": path}
	}
	wide := column("Reason", "string", ".status.reason")
	wide["priority"] = 1
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "rondojobs.rondo.dev"},
		"spec": object{
			"group": "rondo.dev", "scope": "Namespaced",
			"names": object{"kind": "RondoJob", "listKind": "RondoJobList", "plural": "rondojobs",
				"singular": "rondojob", "categories": []string{"all"}},
			"versions": []object{{
				"name": "v1alpha1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{
					"description": "A RondoJob is a training job of Rondo. An operator " +
						"(rondo operator) runs it.",
					"type": "object", "required": []string{"spec"},
					"properties": object{
						"apiVersion": object{"type": "string"}, "kind": object{"type": "string"},
						"metadata": object{"type": "object"},
						"spec":     specSchema(), "status": statusSchema(),
					},
				}},
				"subresources": object{"status": object{}, "scale": object{
					"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
					"labelSelectorPath": ".status.selector"}},
				"additionalPrinterColumns": []object{
					column("Phase", "string", ".status.phase"),
					column("Step", "integer", ".status.step"),
					column("Loss", "number", ".status.loss"),
					column("World", "integer", ".status.world"),
					column("Age", "date", ".metadata.creationTimestamp"),
					wide,
				},
			}},
		},
	}
}

// specSchema is made from the flags.
func specSchema() object {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := AddSubmissionFlags(set)
	job, properties := object{}, object{}
	set.VisitAll(func(flag *pflag.Flag) {
		if flags.jobs[flag.Name] && flag.Name != "config" {
			job[strings.ReplaceAll(flag.Name, "-", "_")] = flagSchema(flag)
		}
	})
	for name, field := range specOptions() {
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		properties[name] = flagSchema(set.Lookup(tag))
	}
	properties[specTemplate] = object{"type": "object",
		"x-kubernetes-preserve-unknown-fields": true,
		"description": "A part of a pod template (metadata, spec), merged into the workers' as " +
			"by kubectl patch. Their container is called worker."}
	properties[specJob] = object{"type": "object", "properties": job,
		"description": "What is trained: the keys of `rondo train --config`."}
	properties[specReplicas] = object{"type": "integer", "format": "int32", "minimum": 1,
		"description": "Number of workers; kubectl scale sets it. Default: job.workers."}
	properties[specSuspend] = object{"type": "boolean",
		"description": "Ends all pods of the workers, who save a checkpoint."}
	return object{"type": "object", "required": []string{specJob}, "properties": properties}
}

// flagSchema returns the schema of a flag's value.
func flagSchema(flag *pflag.Flag) object {
	text := object{"type": "string"}
	s := map[string]object{
		"int": {"type": "integer"}, "int64": {"type": "integer"}, "float": {"type": "number"},
		"bool":           {"type": "boolean"},
		"stringSlice":    {"type": "array", "items": text},
		"stringToString": {"type": "object", "additionalProperties": text},
	}[flag.Value.Type()]
	switch {
	case s == nil && flag.NoOptDefVal == "true":
		s = object{"type": "boolean"}
	case s == nil && flag.Name == "resume": // a step's number, too
		s = object{"x-kubernetes-int-or-string": true}
	case s == nil:
		s = text
	}
	s["description"] = flag.Usage
	return s
}

// statusSchema is made from the fields of the status.
func statusSchema() object {
	return typeSchema(reflect.TypeFor[rondoJobStatus]())
}

func typeSchema(kind reflect.Type) object {
	switch kind.Kind() {
	case reflect.Pointer:
		return typeSchema(kind.Elem())
	case reflect.Slice:
		return object{"type": "array", "items": typeSchema(kind.Elem())}
	case reflect.Int64, reflect.Int32:
		return object{"type": "integer", "format": kind.Kind().String()}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Struct:
		if kind.Name() == "Time" {
			return object{"type": "string", "format": "date-time"}
		}
		properties := object{}
		for i := range kind.NumField() {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			properties[name] = typeSchema(kind.Field(i).Type)
		}
		return object{"type": "object", "properties": properties}
	default:
		return object{"type": "string"}
	}
}
