package kube

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"rondo/internal/app"
)

// maxTemplate is the largest --pod-template in bytes. It is kept in the annotations of the job's
// record, which hold 256 KiB in all.
const maxTemplate = 64 << 10

// readTemplate reads the file of --pod-template.
func readTemplate(file string) (string, error) {
	if file == "" {
		return "", nil // on resume: none any more
	}
	text, err := os.ReadFile(file)
	switch {
	case err != nil:
		return "", app.Usagef("--pod-template: %w", err)
	case len(text) > maxTemplate:
		return "", app.Usagef("--pod-template %s has %d bytes, and at most %d are kept with the "+
			"job", file, len(text), maxTemplate)
	}
	_, err = parseTemplate(string(text))
	return string(text), err
}

// parseTemplate reads a part of a pod template, as Kubernetes' YAML has it.
func parseTemplate(text string) (*corev1.PodTemplateSpec, error) {
	template := &corev1.PodTemplateSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), template); err != nil {
		return nil, app.Usagef("--pod-template is no part of a pod template (metadata, spec): %v",
			err)
	}
	for _, notes := range []map[string]string{template.Labels, template.Annotations} {
		if name := reserved(notes); name != "" {
			return nil, app.Usagef("--pod-template sets %s, which Rondo sets itself: leave it out",
				name)
		}
	}
	return template, nil
}

// reserved returns a label or annotation among these that only Rondo may set; empty: none is.
func reserved(notes map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(notes)) {
		if strings.HasPrefix(name, annotations) || strings.HasPrefix(name, "app.kubernetes.io/") {
			return name
		}
	}
	return ""
}

// validatePods checks what is passed through to the pods.
func validatePods(s *Submission) error {
	if _, err := environment(s.Env); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Annotations)) {
		if problems := validation.IsQualifiedName(strings.ToLower(name)); len(problems) > 0 {
			return app.Usagef("--annotations %s is no name of an annotation: %s", name, problems[0])
		}
	}
	if name := reserved(s.Annotations); name != "" {
		return app.Usagef("--annotations %s: Rondo sets these itself: choose another name", name)
	}
	return nil
}

// environment parses NAME=VALUE.
func environment(texts []string) ([]corev1.EnvVar, error) {
	var all []corev1.EnvVar
	for _, text := range texts {
		name, value, both := strings.Cut(text, "=")
		if !both || len(validation.IsEnvVarName(name)) > 0 {
			return nil, app.Usagef("--env %q is not NAME=VALUE", text)
		}
		all = append(all, corev1.EnvVar{Name: name, Value: value})
	}
	return all, nil
}

// passThrough adds to the workers' pods what a person asks of Kubernetes itself. The template
// changes the pods as `kubectl patch` would: containers, volumes and variables by their names.
func passThrough(s *Submission, t *corev1.PodTemplateSpec) error {
	variables, err := environment(s.Env)
	if err != nil {
		return err
	}
	for i := range t.Spec.Containers {
		c := &t.Spec.Containers[i]
		for _, v := range variables {
			if slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == v.Name }) {
				return app.Usagef("--env %s: Rondo sets this variable itself", v.Name)
			}
			c.Env = append(c.Env, v)
		}
	}
	if s.PodTemplate == "" {
		return nil
	}
	template, err := parseTemplate(s.PodTemplate)
	if err != nil {
		return err
	}
	patch, err := yaml.YAMLToJSON([]byte(s.PodTemplate))
	if err != nil {
		return err
	}
	whole, err := json.Marshal(t)
	if err != nil {
		return err
	}
	merged, err := strategicpatch.StrategicMergePatch(whole, patch, template)
	if err != nil {
		return fmt.Errorf("--pod-template: %w", err)
	}
	*t = corev1.PodTemplateSpec{}
	return json.Unmarshal(merged, t)
}
