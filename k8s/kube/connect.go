package kube

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"rondo/internal/app"
)

// Limits on one command's requests to the API server. A command lists and patches a few dozen
// objects; client-go's own limit of 5 requests a second would make it slow.
const (
	queriesPerSecond = 50
	queriesAtOnce    = 100
	dialTimeout      = 10 * time.Second
)

// A Cluster is an API server and a namespace in which commands work.
type Cluster struct {
	Client    API
	Config    *rest.Config
	Namespace string
	Context   string // of the kubeconfig; empty within a pod

	reach string // the flags that choose this cluster, except the namespace: " --context big"
	named bool   // commands need --namespace to work here
}

// command returns a command line of Rondo for a person to paste. It names the job unless that is
// empty.
func (c *Cluster) command(verb, job string, flags ...string) string {
	line := "rondo " + verb
	if job != "" {
		line += " --job " + job
	}
	if c.named {
		line += " -n " + c.Namespace
	}
	return strings.Join(append([]string{line + c.reach}, flags...), " ")
}

// pageCommand returns kubectl's command line that makes the page of the job's observers available
// on this machine.
func (c *Cluster) pageCommand(job string) string {
	return fmt.Sprintf("kubectl -n %s%s port-forward service/%s-%s 8080", c.Namespace, c.reach,
		job, Coordinator)
}

// String returns the namespace, and the context if there is one.
func (c *Cluster) String() string {
	if c.Context == "" {
		return "namespace " + c.Namespace
	}
	return fmt.Sprintf("namespace %s (context %s)", c.Namespace, c.Context)
}

// in returns the same cluster with another namespace.
func (c *Cluster) in(namespace string) *Cluster {
	there := *c
	there.named = c.named || namespace != c.Namespace
	there.Namespace = namespace
	return &there
}

// connection holds the flags that choose the cluster, as kubectl has them.
type connection struct {
	kubeconfig, context, namespace string
}

// AddFlags defines kubectl's flags for the cluster and the namespace. The returned function
// connects after they are parsed. It reads --kubeconfig, or the merged files of KUBECONFIG, or
// ~/.kube/config, or the service account of a pod. It sends no request yet.
func AddFlags(c *cobra.Command) func() (*Cluster, error) {
	flags := c.Flags()
	addConnectFlags(flags, "n")
	return func() (*Cluster, error) { return Connect(flags) }
}

// AddConnectFlags defines kubectl's flags for the cluster and the namespace, for Connect, in their
// long form alone.
func AddConnectFlags(flags *pflag.FlagSet) { addConnectFlags(flags, "") }

func addConnectFlags(flags *pflag.FlagSet, namespace string) {
	flags.String("kubeconfig", "", "kubeconfig file; default: the files in KUBECONFIG, or "+
		"~/.kube/config")
	flags.String("context", "", "context of the kubeconfig; default: its current one")
	flags.StringP("namespace", namespace, "", "namespace; default: the context's")
}

// Connect connects as the flags say, which must have been parsed.
func Connect(flags *pflag.FlagSet) (*Cluster, error) {
	to := connection{flags.Lookup("kubeconfig").Value.String(),
		flags.Lookup("context").Value.String(), flags.Lookup("namespace").Value.String()}
	return to.open()
}

// config finds the kubeconfig by kubectl's rules.
func (to *connection) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = to.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: to.context}
	overrides.Context.Namespace = to.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

func (to *connection) open() (*Cluster, error) {
	silence()
	if to.kubeconfig != "" {
		if _, err := os.Stat(to.kubeconfig); err != nil {
			return nil, app.Usagef("--kubeconfig: %w", err)
		}
	}
	if to.namespace != "" && len(validation.IsDNS1123Label(to.namespace)) > 0 {
		return nil, app.Usagef("--namespace %q cannot name a namespace: use lower-case letters, "+
			"digits and -, and at most 63", to.namespace)
	}
	found := to.config()
	raw, err := found.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	const see = "(see `kubectl config get-contexts`)"
	if to.context != "" && raw.Contexts[to.context] == nil {
		return nil, app.Usagef("--context %s: the kubeconfig has no such context %s", to.context,
			see)
	}
	config, err := found.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, &explained{text: "no Kubernetes cluster is configured here: no " +
			"kubeconfig (KUBECONFIG, ~/.kube/config) names one; give --kubeconfig FILE",
			err: err}
	} else if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w: give --context NAME %s", err,
			see)
	}
	namespace, _, err := found.Namespace()
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig cannot be used: %w", err)
	}
	c, err := newCluster(config, namespace, cmp.Or(to.context, raw.CurrentContext))
	if err != nil {
		return nil, err
	}
	c.named = to.namespace != ""
	for _, flag := range []struct{ name, value string }{
		{"kubeconfig", to.kubeconfig}, {"context", to.context},
	} {
		if flag.value != "" {
			c.reach += " --" + flag.name + " " + flag.value
		}
	}
	return c, nil
}

// waitingLimit is a limit of requests per second. Where a request's turn comes too late for its
// context, it waits for the context's end, so that callers see that, and not an error of the limit.
type waitingLimit struct{ flowcontrol.RateLimiter }

func (l waitingLimit) Wait(ctx context.Context) error {
	err := l.RateLimiter.Wait(ctx)
	if err != nil && ctx.Done() != nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

// newCluster makes the client for a configuration. It limits the rate of requests unless the
// configuration has a limiter of its own.
func newCluster(config *rest.Config, namespace, context string) (*Cluster, error) {
	if config.RateLimiter == nil {
		config.RateLimiter = waitingLimit{
			flowcontrol.NewTokenBucketRateLimiter(queriesPerSecond, queriesAtOnce)}
	}
	config.UserAgent = "rondo"
	config.WarningHandler = rest.NoWarnings{}
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	client, err := newAPI(config)
	if err != nil {
		return nil, app.Usagef("the kubeconfig cannot be used: %w", err)
	}
	return &Cluster{Client: client, Config: config, Namespace: namespace, Context: context}, nil
}

// silence turns off client-go's log. The same facts come back in errors.
func silence() { klog.SetLogger(logr.Discard()) }
