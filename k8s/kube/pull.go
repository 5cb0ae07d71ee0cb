package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/yaml"

	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/k8s"
)

// Pull says which checkpoint to fetch from a claim.
type Pull struct {
	Job     string // whose --checkpoint-dir it is; empty: From is given
	From    string // pvc://CLAIM/PATH: a folder of checkpoints, or one checkpoint's own
	Step    int64  // 0: the newest, or with Best the one with the lowest validation loss
	Best    bool
	Image   string        // of the pod; empty: that of the job
	Timeout time.Duration // until the pod runs
}

// Limits of a pod that reads a claim.
const (
	pullLife   = 6 * time.Hour // until the cluster ends it, if the command cannot
	pullErrors = 4 << 10       // bytes of its standard error
)

// pulling fetches one checkpoint.
type pulling struct {
	*Cluster
	how   Pull
	claim string
	inPod string // location
	// stream runs a command in the pod, and copies its standard output.
	stream func(ctx context.Context, pod string, command []string, out, wrong io.Writer) error
}

// Run has a pod that mounts the claim send a checkpoint, which receive reads. The pod is deleted
// afterwards.
func (how Pull) Run(ctx context.Context, c *Cluster, receive func(io.Reader) error) error {
	p := &pulling{Cluster: c, how: how}
	p.stream = p.exec
	return p.run(ctx, receive)
}

func (p *pulling) run(ctx context.Context, receive func(io.Reader) error) error {
	submission, err := p.locate(ctx)
	if err != nil {
		return err
	}
	pod, err := p.start(ctx, submission)
	if err != nil {
		return err
	}
	defer p.end(context.WithoutCancel(ctx), pod)
	if err := p.awaitRunning(ctx, pod); err != nil {
		return err
	}
	return p.receive(ctx, pod, receive)
}

// locate finds the claim, the folder in it, and the submission whose image the pod uses.
func (p *pulling) locate(ctx context.Context) (*Submission, error) {
	submission, err := p.submissionOf(ctx)
	if err != nil {
		return nil, err
	}
	from := p.how.From
	if p.how.Job != "" {
		if submission == nil {
			return nil, fmt.Errorf("nothing is known of job %s in namespace %s: give its folder, "+
				"pvc://CLAIM/PATH", p.how.Job, p.Namespace)
		}
		from = submission.Spec["checkpoint_dir"]
	}
	if from == "" || from == jobspec.NoCheckpoints {
		return nil, app.Usagef("job %s has no --checkpoint-dir, so there is nothing to pull",
			p.how.Job)
	}
	if !strings.HasPrefix(from, "pvc://") {
		return nil, app.Usagef("%s is not pvc://CLAIM/PATH: rondo generate --checkpoint %s and the "+
			"like read it from here", from, from)
	}
	p.claim, _, _ = strings.Cut(strings.TrimPrefix(from, "pvc://"), "/")
	p.inPod, err = (&mounts{}).place("--checkpoint", from, true)
	if err != nil {
		return nil, err
	}
	if p.how.Image != "" {
		used := Submission{Options: Options{Image: p.how.Image}}
		if submission != nil {
			used.ImagePullSecret = submission.ImagePullSecret
			used.Tolerations = submission.Tolerations
		}
		submission = &used
	}
	if submission == nil {
		return nil, app.Usagef("no job of namespace %s says which image its pods use: "+
			"rondo checkpoint pull --image IMAGE %s FOLDER", p.Namespace, from)
	}
	return submission, nil
}

// submissionOf returns the submission of the job, or else the newest of the namespace, first of
// those that save to the claim; nil: there is none.
func (p *pulling) submissionOf(ctx context.Context) (*Submission, error) {
	if p.how.Job != "" {
		return lastSubmission(ctx, p.Cluster, p.how.Job)
	}
	records, err := p.Client.CoreV1().ConfigMaps(p.Namespace).List(ctx, selecting("", Record))
	if err != nil {
		return nil, Explain(err, "looking for jobs that use the claim")
	}
	var best *Submission
	claim, _, _ := strings.Cut(strings.TrimPrefix(p.how.From, "pvc://"), "/")
	uses := func(s *Submission) bool {
		return strings.HasPrefix(s.Spec["checkpoint_dir"]+"/", "pvc://"+claim+"/")
	}
	for i := range records.Items {
		one, err := keptIn(&records.Items[i])
		if err != nil || one == nil {
			continue // another job's, which this command need not understand
		}
		if best == nil || uses(one) && !uses(best) ||
			uses(one) == uses(best) && one.Run > best.Run {
			best = one
		}
	}
	return best, nil
}

// start makes the pod. It has the settings of a job's pods, but none of the labels that select
// those.
func (p *pulling) start(ctx context.Context, from *Submission) (string, error) {
	image := "rondo"
	if named := from.images(); len(named) > 0 {
		image = from.Image
	} else if tag, err := manifestsTag(); err != nil {
		return "", err
	} else {
		image += ":" + tag
	}
	tolerated, err := tolerations(from.Tolerations)
	if err != nil {
		return "", err
	}
	yes, no, user, life := true, false, int64(65532), int64(pullLife/time.Second)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "rondo-pull-" + strconv.FormatInt(
			time.Now().UnixNano(), 36), Namespace: p.Namespace,
			Labels: map[string]string{labelManagedBy: manager, labelComponent: "pull"}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &life,
			Tolerations:                  tolerated,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user,
				RunAsGroup: &user, FSGroup: &user, SeccompProfile: &corev1.SeccompProfile{
					Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "pull", Image: image,
				ImagePullPolicy: corev1.PullPolicy(from.ImagePullPolicy),
				Command:         []string{"/rondo", "checkpoint", "send", "--hold", p.inPod},
				Resources:       pullResources(),
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no,
					ReadOnlyRootFilesystem: &yes,
					Capabilities:           &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				VolumeMounts: []corev1.VolumeMount{{Name: "claim", ReadOnly: true,
					MountPath: claimsAt + p.claim}}}},
			Volumes: []corev1.Volume{{Name: "claim", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: p.claim}}}},
		}}
	if from.ImagePullSecret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: from.ImagePullSecret}}
	}
	_, err = p.Client.CoreV1().Pods(p.Namespace).Create(ctx, pod,
		metav1.CreateOptions{FieldManager: manager})
	return pod.Name, Explain(err, "making a pod that reads claim "+p.claim)
}

// pullResources are those of an observer. A namespace with a quota admits no pod without them.
func pullResources() corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"),
			corev1.ResourceMemory: resource.MustParse("64Mi")},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
	}
}

// end deletes the pod, which has nothing to save.
func (p *pulling) end(ctx context.Context, pod string) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	now := int64(0)
	_ = p.Client.CoreV1().Pods(p.Namespace).Delete(ctx, pod,
		metav1.DeleteOptions{GracePeriodSeconds: &now}) // it ends by itself after pullLife
}

// awaitRunning waits until the pod runs. It fails at a problem that waiting does not cure.
func (p *pulling) awaitRunning(ctx context.Context, name string) error {
	last := "it was not started yet"
	ctx, cancel := context.WithTimeout(ctx, p.how.Timeout)
	defer cancel()
	for {
		pod, err := p.Client.CoreV1().Pods(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil && ctx.Err() == nil {
			return Explain(err, "looking at pod "+name)
		}
		if err == nil {
			switch pod.Status.Phase {
			case corev1.PodRunning:
				return nil
			case corev1.PodFailed, corev1.PodSucceeded:
				return fmt.Errorf("pod %s, which reads claim %s, has ended: %s", name, p.claim,
					podStatus(pod, "pull").LastEnd)
			}
			problems := (&scene{cluster: p.Cluster}).ofPod(pod, time.Now())
			for _, problem := range problems {
				if last = problem.String(); problem.Fatal {
					return errors.New(last)
				}
			}
		}
		if wait(ctx, goneEvery) != nil {
			return fmt.Errorf("pod %s, which reads claim %s, does not run after %v: %s", name,
				p.claim, p.how.Timeout, last)
		}
	}
}

// receive has the pod send the checkpoint while receive reads it.
func (p *pulling) receive(ctx context.Context, pod string, receive func(io.Reader) error) error {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	command := []string{"/rondo", "checkpoint", "send", p.inPod}
	if p.how.Step > 0 {
		command = append(command, "--step="+strconv.FormatInt(p.how.Step, 10))
	}
	if p.how.Best {
		command = append(command, "--best")
	}
	in, out := io.Pipe()
	wrong := &head{left: pullErrors}
	sent := make(chan error, 1)
	go func() {
		err := p.stream(streaming, pod, command, out, wrong)
		_ = out.CloseWithError(err)
		sent <- err
	}()
	err := receive(in)
	_ = in.CloseWithError(err)
	if err != nil { // the stream would otherwise go on to the checkpoint's end
		cancel()
	}
	failed := <-sent
	switch {
	case failed == nil || err != nil && !errors.Is(err, failed):
		return err
	case ctx.Err() != nil: // the stream may still write to wrong
		return context.Cause(ctx)
	case wrong.text.Len() > 0:
		return errors.New(Outside(strings.TrimPrefix(oneLine(wrong.text.String()), "rondo: ")))
	}
	return fmt.Errorf("fetching the checkpoint from pod %s: %w", pod, failed)
}

// exec runs a command in the pod.
func (p *pulling) exec(
	ctx context.Context, pod string, command []string, out, wrong io.Writer,
) error {
	request := p.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(p.Namespace).
		Name(pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{Container: "pull",
		Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	modern, err := remotecommand.NewWebSocketExecutor(p.Config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	old, err := remotecommand.NewSPDYExecutor(p.Config, "POST", request.URL())
	if err != nil {
		return err
	}
	both, err := remotecommand.NewFallbackExecutor(modern, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return err
	}
	return both.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: wrong})
}

// head keeps the first bytes that are written.
type head struct {
	text bytes.Buffer
	left int
}

func (h *head) Write(p []byte) (int, error) {
	kept := p[:min(len(p), h.left)]
	h.left -= len(kept)
	h.text.Write(kept)
	return len(p), nil
}

// manifestsTag returns the version in the manifests, which is the tag of the default image.
func manifestsTag() (string, error) {
	text, err := fs.ReadFile(k8s.FS(), "job/kustomization.yaml")
	if err != nil {
		return "", err
	}
	var k types.Kustomization
	if err := yaml.Unmarshal(text, &k); err != nil {
		return "", fmt.Errorf("job/kustomization.yaml: %w", err)
	}
	if len(k.Images) == 0 {
		return "", errors.New("job/kustomization.yaml names no image")
	}
	return k.Images[0].NewTag, nil
}
