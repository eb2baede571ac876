package inject

import (
	"errors"
	"fmt"
	"regexp"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Values are the Helm values of Istio that concern injection. Zero fields mean Istio's
// defaults.
type Values struct {
	Global   Global `json:"global,omitzero"`
	Revision string `json:"revision,omitempty"`
	// SidecarInjectorWebhook has the settings of the webhook.
	SidecarInjectorWebhook Webhook `json:"sidecarInjectorWebhook,omitzero"`
	Pilot                  Pilot   `json:"pilot,omitzero"`
	// All has these and all other values, for custom templates.
	All map[string]any `json:"-"`
}

// Global has the settings of the mesh and the proxies.
type Global struct {
	Hub              string   `json:"hub,omitempty"`
	Tag              any      `json:"tag,omitempty"` // text or a number
	ImagePullPolicy  string   `json:"imagePullPolicy,omitempty"`
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty"`
	MeshID           string   `json:"meshID,omitempty"`
	Network          string   `json:"network,omitempty"`
	MultiCluster     struct {
		ClusterName string `json:"clusterName,omitempty"`
	} `json:"multiCluster,omitzero"`
	CAAddress         string `json:"caAddress,omitempty"`
	PilotCertProvider string `json:"pilotCertProvider,omitempty"`
	Proxy             Proxy  `json:"proxy,omitzero"`
	ProxyInit         struct {
		ForceApplyIptables bool `json:"forceApplyIptables,omitempty"`
	} `json:"proxy_init,omitzero"`
}

// Proxy has the settings of the containers.
type Proxy struct {
	AutoInject                      string                       `json:"autoInject,omitempty"` // enabled or disabled
	Image                           string                       `json:"image,omitempty"`
	LogLevel                        string                       `json:"logLevel,omitempty"`
	ComponentLogLevel               *string                      `json:"componentLogLevel,omitempty"`
	IncludeIPRanges                 string                       `json:"includeIPRanges,omitempty"`
	ExcludeIPRanges                 string                       `json:"excludeIPRanges,omitempty"`
	IncludeInboundPorts             string                       `json:"includeInboundPorts,omitempty"`
	ExcludeInboundPorts             string                       `json:"excludeInboundPorts,omitempty"`
	IncludeOutboundPorts            string                       `json:"includeOutboundPorts,omitempty"`
	ExcludeOutboundPorts            string                       `json:"excludeOutboundPorts,omitempty"`
	HoldApplicationUntilProxyStarts bool                         `json:"holdApplicationUntilProxyStarts,omitempty"`
	ReadinessFailureThreshold       int32                        `json:"readinessFailureThreshold,omitempty"`
	ReadinessInitialDelaySeconds    int32                        `json:"readinessInitialDelaySeconds,omitempty"`
	ReadinessPeriodSeconds          int32                        `json:"readinessPeriodSeconds,omitempty"`
	StartupProbe                    StartupProbe                 `json:"startupProbe,omitzero"`
	Resources                       *corev1.ResourceRequirements `json:"resources,omitempty"`
	SeccompProfile                  *corev1.SeccompProfile       `json:"seccompProfile,omitempty"`
	Lifecycle                       *corev1.Lifecycle            `json:"lifecycle,omitempty"`
}

// StartupProbe has the settings of the startup probe.
type StartupProbe struct {
	Enabled          *bool `json:"enabled,omitempty"`
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// Webhook has the settings of the injection of pods.
type Webhook struct {
	RewriteAppHTTPProbe  *bool                  `json:"rewriteAppHTTPProbe,omitempty"`
	DefaultTemplates     []string               `json:"defaultTemplates,omitempty"`
	Templates            map[string]string      `json:"templates,omitempty"`
	Aliases              map[string][]string    `json:"aliases,omitempty"` // lists of templates by name
	InjectedAnnotations  map[string]string      `json:"injectedAnnotations,omitempty"`
	AlwaysInjectSelector []metav1.LabelSelector `json:"alwaysInjectSelector,omitempty"`
	NeverInjectSelector  []metav1.LabelSelector `json:"neverInjectSelector,omitempty"`
}

// Pilot has the settings of the control plane that concern injection.
type Pilot struct {
	Env struct {
		NativeSidecars any `json:"ENABLE_NATIVE_SIDECARS,omitempty"` // text or a boolean
	} `json:"env,omitzero"`
	CNI struct {
		Enabled bool `json:"enabled,omitempty"`
	} `json:"cni,omitzero"`
}

// config is the key config of the ConfigMap.
type config struct {
	Policy string `json:"policy,omitempty"`
	Webhook
}

// ParseValues decodes the keys values and config of the ConfigMap, YAML or JSON. Fields
// without effect on injection are ignored.
func ParseValues(values, webhook string) (Values, error) {
	var v Values
	if err := decodeValues(values, &v); err != nil {
		return v, fmt.Errorf("%s: %w", mesh.InjectorKeyValues, err)
	}
	if err := decodeValues(values, &v.All); err != nil {
		return v, fmt.Errorf("%s: %w", mesh.InjectorKeyValues, err)
	}
	var c config
	if err := decodeValues(webhook, &c); err != nil {
		return v, fmt.Errorf("%s: %w", mesh.InjectorKeyConfig, err)
	}
	own := &v.SidecarInjectorWebhook
	if c.Policy != "" {
		v.Global.Proxy.AutoInject = c.Policy
	}
	if len(c.DefaultTemplates) > 0 {
		own.DefaultTemplates = c.DefaultTemplates
	}
	if len(c.InjectedAnnotations) > 0 {
		own.InjectedAnnotations = c.InjectedAnnotations
	}
	if len(c.Templates) > 0 {
		own.Templates = c.Templates
	}
	if len(c.Aliases) > 0 {
		own.Aliases = c.Aliases
	}
	own.AlwaysInjectSelector = append(own.AlwaysInjectSelector, c.AlwaysInjectSelector...)
	own.NeverInjectSelector = append(own.NeverInjectSelector, c.NeverInjectSelector...)
	return v, nil
}

func decodeValues(text string, into any) error {
	set, err := yamldoc.WithoutNulls([]byte(text))
	if err != nil {
		return err
	}
	return yaml.Unmarshal(set, into)
}

// ParseMesh decodes a MeshConfig, YAML or JSON, above Istio's defaults. The warnings name fields
// that are not known.
func ParseMesh(text string) (m *meshv1alpha1.MeshConfig, warnings []string, err error) {
	object := &corev1.ConfigMap{Data: map[string]string{"mesh": text}}
	object.Name, object.Namespace = "istio", mesh.DefaultSystemNamespace
	r, err := (&source.Converter{Remote: true}).Convert(object, snapshot.Place{})
	if fault, ok := errors.AsType[*fields.Error](err); ok {
		return nil, nil, errors.New(inFile(fault))
	}
	if err != nil {
		return nil, nil, err
	}
	for _, w := range r.Warnings {
		warnings = append(warnings, inFile(w))
	}
	settings, ok := r.Object.(*snapshot.MeshSettings)
	if !ok {
		return nil, warnings, fmt.Errorf("the MeshConfig is a %T", r.Object)
	}
	return settings.Mesh, warnings, nil
}

// inFile returns a fault in the text of a ConfigMap without the key of the ConfigMap.
func inFile(fault *fields.Error) string {
	return fmt.Sprintf("line %d: %v", fault.TextLine, fault.Err)
}

// isImageName reports whether s may be the reference of an image.
func isImageName(s string) bool { return len(s) <= 512 && imageName.MatchString(s) }

var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@/-]*$`)

// istioImage is the name of the image of Istio's proxy.
var istioImage = regexp.MustCompile(`(^|/)proxyv2($|[:@-])`)

func (i *Injector) checkValues() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("values: "+field+": "+format, args...))
	}
	v, proxy := &i.Values, &i.Values.Global.Proxy
	switch image := i.image(); {
	case !isImageName(image):
		bad("global.proxy.image", "%q is not the reference of an image", image)
	case istioImage.MatchString(image):
		bad("global.proxy.image", "%s is Istio's image, which does not contain meshctl: name the image of meshctl", image)
	}
	switch proxy.AutoInject {
	case "", policyEnabled, policyDisabled:
	default:
		bad("global.proxy.autoInject", "%q: want %s or %s", proxy.AutoInject, policyEnabled, policyDisabled)
	}
	if v.Pilot.CNI.Enabled {
		bad("pilot.cni.enabled", "no CNI plugin is supported: pods redirect their connections by an init container")
	}
	if _, err := boolean(v.Pilot.Env.NativeSidecars, true); err != nil {
		bad("pilot.env.ENABLE_NATIVE_SIDECARS", "%w", err)
	}
	for _, f := range []struct {
		field string
		fault error
	}{
		{"includeIPRanges", checkRanges(proxy.IncludeIPRanges)},
		{"excludeIPRanges", checkRangeList(proxy.ExcludeIPRanges)},
		{"includeInboundPorts", checkPorts(proxy.IncludeInboundPorts)},
		{"excludeInboundPorts", checkPortList(proxy.ExcludeInboundPorts)},
		{"includeOutboundPorts", checkPortList(proxy.IncludeOutboundPorts)},
		{"excludeOutboundPorts", checkPortList(proxy.ExcludeOutboundPorts)},
		{"logLevel", checkLogLevels(proxy.LogLevel)},
	} {
		if f.fault != nil {
			bad("global.proxy."+f.field, "%w", f.fault)
		}
	}
	if id := v.Global.MultiCluster.ClusterName; id != "" && !mesh.ClusterID(id).Valid() {
		bad("global.multiCluster.clusterName", "%q: want letters, digits, '.', '-' and '_', at most 63", id)
	}
	i.always = selectors(&errs, "alwaysInjectSelector", v.SidecarInjectorWebhook.AlwaysInjectSelector)
	i.never = selectors(&errs, "neverInjectSelector", v.SidecarInjectorWebhook.NeverInjectSelector)
	return errors.Join(errs...)
}

func selectors(errs *[]error, field string, from []metav1.LabelSelector) []labels.Selector {
	var out []labels.Selector
	for n := range from {
		s, err := metav1.LabelSelectorAsSelector(&from[n])
		if err != nil {
			*errs = append(*errs, fmt.Errorf("values: sidecarInjectorWebhook.%s[%d]: %w", field, n, err))
			continue
		}
		if !s.Empty() { // as Istio: an empty selector selects nothing
			out = append(out, s)
		}
	}
	return out
}

// boolean returns the boolean in text or in a boolean.
func boolean(value any, def bool) (bool, error) {
	switch v := value.(type) {
	case nil:
		return def, nil
	case bool:
		return v, nil
	case string:
		switch v {
		case "":
			return def, nil
		case "true", "false":
			return v == "true", nil
		}
	}
	return def, fmt.Errorf("%v: want true or false", value)
}
