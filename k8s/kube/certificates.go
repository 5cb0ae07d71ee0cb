package kube

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rondo/internal/certs"
)

const (
	// authoritySecret is the Secret of the authority that signs for a namespace's jobs.
	authoritySecret = "rondo-ca"
	// annotationAuthority names the Secret of the authority that signed a Secret's certificate.
	annotationAuthority = "rondo.dev/authority"
	certManager         = "cert-manager.io"
)

// certificate is a cert-manager Certificate for which submit makes the Secret itself.
type certificate struct {
	secret *unstructured.Unstructured // without its data
	by     string                     // Secret of the authority that signs it
	leaf   certs.Leaf
}

// takeCertificates takes cert-manager's objects out of the submission if submit makes their Secrets
// itself: where the cluster has no cert-manager, or the namespace's authority is submit's own.
func (a *applier) takeCertificates(ctx context.Context) error {
	if a.m.Options.Insecure {
		return nil
	}
	own, err := a.signs(ctx)
	if err != nil || !own {
		return err
	}
	external := len(a.m.Options.Etcd) > 0
	for _, list := range []*[]*unstructured.Unstructured{&a.m.Shared, &a.m.Job} {
		rest := []*unstructured.Unstructured{}
		for _, object := range *list {
			if object.GroupVersionKind().Group != certManager {
				rest = append(rest, object)
				continue
			}
			c, err := certificateOf(object)
			if err != nil {
				return fmt.Errorf("%s: %w", nameOf(object), err)
			}
			if c != nil && !(external && list == &a.m.Shared) { // etcd's are somebody else's
				a.certificates = append(a.certificates, c)
			}
		}
		*list = rest
	}
	return nil
}

// signs reports whether submit makes certificates itself.
func (a *applier) signs(ctx context.Context) (bool, error) {
	_, err := a.mapper.RESTMapping(schema.GroupKind{Group: certManager, Kind: "Certificate"})
	if meta.IsNoMatchError(err) {
		return true, nil
	} else if err != nil {
		return false, Explain(err, "asking for the cluster's kinds")
	}
	authority, err := a.Client.CoreV1().Secrets(a.Namespace).Get(ctx, authoritySecret,
		metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return false, nil // whoever may not read Secrets has made none
	}
	return err == nil && managed(authority), Explain(err, "looking for secret/"+authoritySecret)
}

func managed(secret *corev1.Secret) bool { return secret.Labels[labelManagedBy] == manager }

// certificateOf reads a Certificate; nil of an Issuer or an authority.
func certificateOf(object *unstructured.Unstructured) (*certificate, error) {
	var read struct {
		Spec struct {
			IsCA        bool     `json:"isCA"`
			CommonName  string   `json:"commonName"`
			SecretName  string   `json:"secretName"`
			DNSNames    []string `json:"dnsNames"`
			IPAddresses []string `json:"ipAddresses"`
			URIs        []string `json:"uris"`
			IssuerRef   struct {
				Name string `json:"name"` // that of the authority's Secret too
			} `json:"issuerRef"`
		} `json:"spec"`
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read)
	spec := read.Spec
	if err != nil || object.GetKind() != "Certificate" || spec.IsCA {
		return nil, err
	}
	c := &certificate{by: spec.IssuerRef.Name, secret: newSecret(spec.SecretName, object),
		leaf: certs.Leaf{Common: spec.CommonName,
			Hosts: slices.Concat(spec.DNSNames, spec.IPAddresses)}}
	for _, text := range spec.URIs {
		uri, err := url.Parse(text)
		if err != nil {
			return nil, err
		}
		c.leaf.URIs = append(c.leaf.URIs, uri)
	}
	return c, nil
}

// newSecret returns a Secret without data, with the namespace and the labels of an object.
func newSecret(name string, like *unstructured.Unstructured) *unstructured.Unstructured {
	secret := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "Secret", "type": string(corev1.SecretTypeTLS)}}
	secret.SetName(name)
	secret.SetNamespace(like.GetNamespace())
	secret.SetLabels(like.GetLabels())
	return secret
}

// applyCertificates makes the Secrets of the submission's certificates that are missing, and renews
// those of the whole namespace that submit has made. Secrets that somebody else has made are used
// as they are, if none is missing.
func (a *applier) applyCertificates(ctx context.Context) error {
	if len(a.certificates) == 0 {
		return nil
	}
	all, err := a.Client.CoreV1().Secrets(a.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return Explain(err, "looking for the secrets of certificates")
	}
	there := map[string]*corev1.Secret{}
	for i := range all.Items {
		there[all.Items[i].Name] = &all.Items[i]
	}
	var missing, foreign []string
	for _, c := range a.certificates {
		name := c.secret.GetName()
		if there[name] == nil {
			missing = append(missing, name)
		} else if !managed(there[name]) {
			foreign = append(foreign, name)
		}
	}
	switch etcd := a.m.Options.Etcd; {
	case len(missing) > 0 && len(foreign) > 0:
		return fmt.Errorf("secret/%s is missing, and rondo submit did not make secret/%s: make "+
			"the first by the authority of the second (rondo certs), or delete both",
			missing[0], foreign[0])
	case len(missing) > 0 && len(etcd) > 0:
		return fmt.Errorf("secret/%s is missing, and only you know which authority the etcd at "+
			"%s trusts: make it (rondo certs), or install cert-manager", missing[0], etcd[0])
	case len(foreign) > 0:
		return nil
	}
	for _, c := range a.certificates {
		if err := a.renew(ctx, c, there[c.secret.GetName()]); err != nil {
			return err
		}
		delete(there, c.secret.GetName())
	}
	for _, name := range slices.Sorted(maps.Keys(there)) { // of other jobs
		c := certificateIn(there[name])
		if c == nil {
			continue
		}
		if err := a.renew(ctx, c, there[name]); err != nil {
			return err
		}
	}
	return nil
}

// certificateIn reads what submit has signed; nil of other Secrets.
func certificateIn(secret *corev1.Secret) *certificate {
	by := secret.Annotations[annotationAuthority]
	leaf, err := certs.LeafOf(secret.Data[corev1.TLSCertKey])
	if !managed(secret) || by == "" || err != nil {
		return nil
	}
	like := &unstructured.Unstructured{}
	like.SetNamespace(secret.Namespace)
	like.SetLabels(secret.Labels)
	return &certificate{by: by, leaf: leaf, secret: newSecret(secret.Name, like)}
}

// renew makes the Secret of a certificate, unless the present one, which may be nil, has more than
// half of its life left and is of the present authority.
func (a *applier) renew(ctx context.Context, c *certificate, present *corev1.Secret) error {
	by, err := a.authority(ctx, c)
	if err != nil {
		return err
	}
	if present != nil && !certs.Aged(present.Data[corev1.TLSCertKey], time.Now()) &&
		bytes.Equal(present.Data[certs.TrustFile], by.PEM()) {
		return nil
	}
	pair, err := by.Sign(c.leaf, time.Now())
	if err != nil {
		return fmt.Errorf("signing secret/%s: %w", c.secret.GetName(), err)
	}
	data := map[string]any{}
	for name, content := range map[string][]byte{corev1.TLSCertKey: pair.Cert,
		corev1.TLSPrivateKeyKey: pair.Key, certs.TrustFile: by.PEM()} {
		data[name] = base64.StdEncoding.EncodeToString(content)
	}
	c.secret.Object["data"] = data
	annotate(c.secret, annotationAuthority, c.by)
	return a.applyAll(ctx, []*unstructured.Unstructured{c.secret}, "certificate of "+c.leaf.Common)
}

// authority returns the authority that signs a certificate. Of submissions that make it at the same
// time, one does, and the others use that one.
func (a *applier) authority(ctx context.Context, c *certificate) (*certs.Authority, error) {
	secrets := a.Client.CoreV1().Secrets(a.Namespace)
	now := time.Now()
	there, err := secrets.Get(ctx, c.by, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		var pair certs.Pair
		if pair, err = certs.NewAuthority(now); err != nil {
			return nil, err
		}
		labels := c.secret.GetLabels()
		there, err = secrets.Create(ctx, &corev1.Secret{Type: corev1.SecretTypeTLS,
			ObjectMeta: metav1.ObjectMeta{Name: c.by, Labels: map[string]string{
				labelName: labels[labelName], labelManagedBy: labels[labelManagedBy]}},
			Data: map[string][]byte{corev1.TLSCertKey: pair.Cert, corev1.TLSPrivateKeyKey: pair.Key,
				certs.TrustFile: pair.Cert}},
			metav1.CreateOptions{FieldManager: manager, DryRun: a.dryRun})
		if apierrors.IsAlreadyExists(err) {
			there, err = secrets.Get(ctx, c.by, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, Explain(err, "the authority in secret/"+c.by)
	}
	by, err := certs.ParseAuthority(certs.Pair{Cert: there.Data[corev1.TLSCertKey],
		Key: there.Data[corev1.TLSPrivateKeyKey]}, now)
	if err != nil {
		return nil, fmt.Errorf("secret/%s: %w", c.by, err)
	}
	return by, nil
}
