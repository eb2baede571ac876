package inject

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"text/template"
	"text/template/parse"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// withTemplates returns an injector with templates.
func withTemplates(templates map[string]string) (*Injector, error) {
	values := Values{}
	values.SidecarInjectorWebhook.Templates = templates
	return New(Settings{Values: values})
}

// podOf returns a pod with annotations.
func podOf(annotations map[string]any) Pod {
	return Pod{Object: map[string]any{
		"metadata": map[string]any{"name": "web", "labels": map[string]any{"app": "web", "x": "{{ .Y }}"}, "annotations": annotations},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "app", "ports": []any{map[string]any{"containerPort": 8080}}}}},
	}}
}

// render returns the annotation out of a pod that a template sets, or the error.
func render(t *testing.T, text string, annotations map[string]any) (string, error) {
	t.Helper()
	i, err := withTemplates(map[string]string{"own": text})
	if err != nil {
		t.Fatal(err)
	}
	annotations = maps.Clone(annotations)
	if annotations == nil {
		annotations = map[string]any{}
	}
	annotations[mesh.AnnotationTemplates] = "own"
	result, err := i.Inject(t.Context(), podOf(annotations))
	if err != nil {
		return "", err
	}
	out, _ := result.Object["metadata"].(map[string]any)["annotations"].(map[string]any)["out"].(string)
	return out, nil
}

// TestTemplateFunctions: the functions return what Istio's functions return.
func TestTemplateFunctions(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"valueOrDefault .Values.global.nothing `x`":                "x",
		"valueOrDefault `y` `x`":                                   "y",
		"annotation .ObjectMeta `a` 5":                             "one",
		"annotation .ObjectMeta `b` .ProxyConfig.InterceptionMode": "REDIRECT",
		"isset .ObjectMeta.Annotations `a`":                        "true",
		"toJSON .ObjectMeta.Labels":                                `{"app":"web","x":"{{ .Y }}"}`,
		"toJSON .ObjectMeta.Nothing":                               `error: line 1: at <.ObjectMeta.Nothing>: can't evaluate field Nothing`,
		"toJsonMap (strdict `a` `1` `b`) (strdict `a` `2`)":        `{"a":"2","b":""}`,
		"toJSON (omit .ObjectMeta.Labels `x` `y`)":                 `{"app":"web"}`,
		"toJSON (mergeMaps .ObjectMeta.Labels (strdict `x` `1`))":  `{"app":"web","x":"1"}`,
		"structToJSON (index .Spec.Containers 0).Ports":            `[{"containerPort":8080}]`,
		"structToJSON .Values.global.nothing":                      "{}",
		"protoToJSON .ProxyConfig":                                 "{}",
		"(fromJSON `[1,{\"k\":\"v\"}]`) | last | toJson":           `{"k":"v"}`,
		"fromJSON `{`": "{}",
		"toYaml (omitNil (fromJSON `{\"a\":null,\"b\":[null,{}],\"c\":[]}`))": "b:\n- {}\nc: []\n",
		"indent 2 `a\nb`":                                                  "a\n  b",
		"`a\nb` | nindent 2":                                               "\n  a\n  b",
		"directory `/etc/certs/ca.pem`":                                    "/etc/certs/",
		"contains `ell` `hello`":                                           "true",
		"toLower `Pod`":                                                    "pod",
		"excludeInboundPort 15020 `80, 15020`":                             "80, 15020",
		"excludeInboundPort 15020 `80, 81`":                                "80,81,15020",
		"excludeInboundPort `0` `80`":                                      "80",
		"includeInboundPorts .Spec.Containers":                             "8080",
		"applicationPorts .Spec.Containers":                                "8080",
		"kubevirtInterfaces `net1`":                                        "net1",
		"appendMultusNetwork `` `default/istio-cni`":                       "default/istio-cni",
		"appendMultusNetwork `a` `istio-cni`":                              "a, istio-cni",
		"appendMultusNetwork `a, istio-cni` `istio-cni`":                   "a, istio-cni",
		"appendMultusNetwork `[{\"name\":\"a\"}]` `default/istio-cni`":     `[{"name":"a"}, {"name": "istio-cni", "namespace": "default"}]`,
		"formatDuration .ProxyConfig.DrainDuration":                        "45s",
		"printf `%s-%03d` .DeploymentMeta.Name 7":                          "web-007",
		"index .ObjectMeta.Labels `team` | default .TypeMeta.Kind | quote": `"Pod"`,
		"list 1 2 | join `,`":                                              "1,2",
		".ProxyUID":                                                        "1337",
		".Values.global.multiCluster.clusterName":                          "Kubernetes",
		"or .ProxyConfig.HoldApplicationUntilProxyStarts.GetValue false":   "false",
	} {
		got, err := render(t, "metadata: {annotations: {out: {{ "+expression+" | toString | toJson }}}}", map[string]any{"a": "one"})
		if reason, bad := strings.CutPrefix(want, "error: "); bad {
			if err == nil || !strings.Contains(err.Error(), "template own: "+reason) {
				t.Errorf("%s: %v, want %s", expression, err, reason)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", expression, got, err, want)
		}
	}
}

// TestWithheldFunctions: no function reads the environment, the clock, the network or random numbers.
func TestWithheldFunctions(t *testing.T) {
	t.Parallel()
	for _, name := range append([]string{"env", "expandenv", "getHostByName", "now", "date", "uuidv4", "randAlphaNum", "call_nothing"}, withheld...) {
		_, err := withTemplates(map[string]string{"own": "metadata:\n  labels: {a: {{ " + name + " `HOME` }}}"})
		if err == nil || !strings.Contains(err.Error(), `config: templates: own: line 2: function "`+name+`" not defined`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Look at each new function of sprig: is its result much larger than its arguments?
	if n := len(templateFunctions()); n != 211 {
		t.Errorf("there are %d functions: %v", n, slices.Sorted(maps.Keys(templateFunctions())))
	}
}

// TestBadTemplates: templates that do not compile are refused with the line and the reason.
func TestBadTemplates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"spec: {{ if .Values.x }}":                               "line 1: unexpected EOF",
		"a\nb\n{{ end }}":                                        "line 3: unexpected {{end}}",
		"metadata:\n  labels: {a: {{ (.X }}}":                    "line 2: unclosed left paren",
		"{{ define \"a\" }}\n{{ nope }}{{ end }}":                `line 2: function "nope" not defined`,
		"\n{{ template \"a\" }}":                                 "",
		"'{{ toYaml\n .Values }}'":                               "", // YAML that is no mapping: it depends on the values
		`"\x7b\x7b bad }}"`:                                      "the result does not have the form of a pod: json: cannot unmarshal string",
		"spec: {containers: many}":                               "the result does not have the form of a pod: json: cannot unmarshal string into Go struct field PodSpec.spec.containers",
		"metadata:\n  labels: {a: 1}":                            "the result does not have the form of a pod: json: cannot unmarshal number",
		"spec:\n  a: [":                                          "the result is no YAML: line 2: did not find expected node content",
		"{{/* a comment */}}\nspec:\n  nodeName: a\n  nodeName:": `the result is no YAML: line 4: key "nodeName" is given twice`,
	} {
		_, err := withTemplates(map[string]string{"own": text})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), "config: templates: own: "+want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestFaultsOfPods: where a template fails for a pod, the error names the line. Text of the pod is
// never a template, and makes no template run long.
func TestFaultsOfPods(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 200_000)
	for name, tc := range map[string]struct {
		template, text, want string // of the error, or the result after "="
	}{
		"no field":           {"metadata:\n  name: {{ .Nothing }}", "", "line 2: at <.Nothing>: can't evaluate field Nothing"},
		"no value":           {"metadata: {annotations: {out: {{ .Values.a.b }}}}", "", "=<no value>"},
		"no template":        {"\n{{ template \"a\" }}", "", `line 2: at <{{template "a"}}>: template "a" not defined`},
		"function":           {"{{ fail `no\nway` }}", "", "line 1: at <fail>: error calling fail: no\nway"},
		"no mapping":         {"'{{ toYaml\n .Values }}'", "", "the result does not have the form of a pod"},
		"two documents":      {"{{ print }}metadata: {}\n---\nspec: {}", "", "a second YAML document"},
		"line of YAML":       {"metadata:\n  labels: {a: {{ .ObjectMeta.Annotations.text }}}", "}]", `line 2: did not find expected key, which is "  labels: {a: }]}"`},
		"text of the pod":    {"metadata: {annotations: {out: {{ .ObjectMeta.Annotations.text | quote }}}}", "{{ .Values }}", "={{ .Values }}"},
		"nothing":            {"{{ if false }}spec: {}{{ end }}", "", "="},
		"loop of a number":   {"{{ range $i := atoi .ObjectMeta.Annotations.text }}{{ end }}", "9999999999", errTemplateWork.Error()},
		"loops in loops":     {"{{ range until 9999 }}{{ range until 9999 }}{{ $x := . }}{{ end }}{{ end }}", "", errTemplateWork.Error()},
		"until":              {"{{ until (atoi .ObjectMeta.Annotations.text) | len }}", "999999999", errTemplateWork.Error()},
		"largest until":      {"{{ untilStep (atoi .ObjectMeta.Annotations.text) 9223372036854775807 10 | len }}", "9223372036854775800", errTemplateWork.Error()},
		"largest step":       {"{{ untilStep 5 10 (atoi .ObjectMeta.Annotations.text) | len }}", "9223372036854775807", errTemplateWork.Error()},
		"smallest step":      {"{{ seq 5 (atoi .ObjectMeta.Annotations.text) 1 | len }}", "-9223372036854775808", errTemplateWork.Error()},
		"negative until":     {"{{ until (atoi .ObjectMeta.Annotations.text) | len }}", "-999999999", errTemplateWork.Error()},
		"untilStep":          {"{{ untilStep 0 (atoi .ObjectMeta.Annotations.text) 1 | len }}", "999999999", errTemplateWork.Error()},
		"seq":                {"{{ seq (atoi .ObjectMeta.Annotations.text) | len }}", "999999999", errTemplateWork.Error()},
		"repeat":             {"{{ repeat (atoi .ObjectMeta.Annotations.text) `abc` }}", "999999999", errTemplateWork.Error()},
		"negative repeat":    {"{{ repeat (atoi .ObjectMeta.Annotations.text) `abc` }}", "-1", "negative Repeat count"},
		"indent":             {"{{ indent (atoi .ObjectMeta.Annotations.text) `a\nb` }}", "999999999", errTemplateWork.Error()},
		"nindent":            {"{{ nindent (atoi .ObjectMeta.Annotations.text) `a\nb` }}", "999999999", errTemplateWork.Error()},
		"replace":            {"{{ replace `x` .ObjectMeta.Annotations.text .ObjectMeta.Annotations.text }}", long, errTemplateWork.Error()},
		"join":               {"{{ splitList `x` .ObjectMeta.Annotations.text | join .ObjectMeta.Annotations.text }}", long, errTemplateWork.Error()},
		"regular expression": {"{{ regexReplaceAll .ObjectMeta.Annotations.text .ObjectMeta.Annotations.text `y` }}", long, errTemplateWork.Error()},
		"format":             {"{{ printf .ObjectMeta.Annotations.text 1 }}", strings.Repeat("%999d", 20_000), errTemplateWork.Error()},
		"width":              {"{{ printf .ObjectMeta.Annotations.text 1 }}", "%9999d", "a width in the format of printf"},
		"width of a value":   {"{{ printf `%*d` (atoi .ObjectMeta.Annotations.text) 1 }}", "999999", "a width in the format of printf"},
		"uniq":               {"{{ splitList `x` .ObjectMeta.Annotations.text | uniq }}", long, errTemplateWork.Error()},
		"doubled text":       {"{{ $a := `x` }}{{ range until 100 }}{{ $a = print $a $a }}{{ end }}", "", errTemplateWork.Error()},
		"doubled list":       {"{{ $a := list 1 }}{{ range until 100 }}{{ $a = concat $a $a }}{{ end }}", "", errTemplateWork.Error()},
		"doubled mapping":    {"{{ $a := dict }}{{ range until 100 }}{{ $a = dict `a` $a `b` $a }}{{ end }}{{ $a }}", "", errTemplateWork.Error()},
		"mapping in itself":  {"{{ $a := dict }}{{ $b := set $a `a` $a }}{{ $a }}", "", errTemplateWork.Error()},
		"calls itself":       {"{{ define `a` }}{{ template `a` }}{{ end }}{{ template `a` }}", "", errTemplateDepth.Error()},
		"calls itself twice": {"{{ define `a` }}{{ if lt (len .) 40 }}{{ template `a` (print . `x`) }}{{ template `a` (print . `x`) }}{{ end }}{{ end }}{{ template `a` `` }}", "", errTemplateWork.Error()},
		"long result":        {"{{ range until 6 }}{{ $.ObjectMeta.Annotations.text }}{{ end }}", long, errTemplateOutput.Error()},
		"deep JSON":          {"{{ fromJSON .ObjectMeta.Annotations.text | toYaml }}", strings.Repeat("[", 5000) + strings.Repeat("]", 5000), errTemplateWork.Error()},
		"aliases":            {"a: &a [x,x,x,x,x,x,x,x,x,x]\n{{ range $i := until 9 }}b{{ $i }}: &b{{ $i }} [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n{{ end }}c: [*b0,*b1]", "", "="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := render(t, tc.template, map[string]any{"text": tc.text})
			if result, ok := strings.CutPrefix(tc.want, "="); ok {
				if err != nil || got != result {
					t.Errorf("%q, %v, want %q", got, err, result)
				}
			} else if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestPathInTemplates: the path of the webhook sets the cluster and metadata of the proxy of any template.
func TestPathInTemplates(t *testing.T) {
	t.Parallel()
	i, err := withTemplates(map[string]string{"own": "spec: {containers: [{name: istio-proxy, image: 'x:{{ len .Revision }}', env: [{name: ISTIO_META_CLUSTER_ID, value: a}]}]}"})
	if err != nil {
		t.Fatal(err)
	}
	pod := podOf(map[string]any{mesh.AnnotationTemplates: "own"})
	pod.Cluster, pod.Network, pod.Metadata = "east", "net1", map[string]string{"ISTIO_META_X": "y"}
	result, err := i.Inject(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(findContainer(result.Object, proxyContainer)["env"])
	want := `[{"name":"ISTIO_META_CLUSTER_ID","value":"east"},{"name":"ISTIO_META_NETWORK","value":"net1"},{"name":"ISTIO_META_X","value":"y"}`
	if err != nil || !strings.HasPrefix(string(text), want) {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// TestJoinProxies: a template changes the proxy of another, before or after it, in whichever list it is.
func TestJoinProxies(t *testing.T) {
	t.Parallel()
	for _, list := range []string{"containers", "initContainers"} {
		i, err := withTemplates(map[string]string{"own": "spec: {" + list + ": [{name: istio-proxy, env: [{name: OWN, value: '1'}]}]}"})
		if err != nil {
			t.Fatal(err)
		}
		for _, names := range []string{"own,sidecar", "sidecar,own", "own,own,sidecar", "grpc-agent,own"} {
			result, err := i.Inject(t.Context(), podOf(map[string]any{mesh.AnnotationTemplates: names}))
			if err != nil {
				t.Errorf("%s: %v", names, err)
				continue
			}
			all := append(containersOf(result.Object, initContainers), containersOf(result.Object, appContainers)...)
			all = slices.DeleteFunc(all, func(c map[string]any) bool { return c["name"] != proxyContainer })
			if len(all) != 1 || all[0]["restartPolicy"] != "Always" || !strings.Contains(fmt.Sprint(all[0]["env"]), "OWN") {
				t.Errorf("%s in %s: %v", names, list, all)
			}
		}
	}
}

// TestTemplatesShareNothing: a template that changes its data changes nothing for other pods.
func TestTemplatesShareNothing(t *testing.T) {
	t.Parallel()
	i, err := withTemplates(map[string]string{"own": `{{ $x := set .Values.global "hub" "changed" }}{{ $y := .ProxyConfig.Reset }}{{ .MeshConfig.Reset }}`})
	if err == nil {
		_, err = i.Inject(t.Context(), podOf(map[string]any{mesh.AnnotationTemplates: "own,sidecar"}))
	}
	if err == nil || !strings.Contains(err.Error(), "Reset") {
		t.Fatalf("%v", err) // methods without a result cannot be called
	}
	i, err = withTemplates(map[string]string{
		"own": `{{ $x := set .Values.global "hub" "changed" }}{{ $y := unset .Values "revision" }}metadata: {annotations: {out: "{{ .Values.global.hub }}"}}`,
		"see": `metadata: {annotations: {out: "{{ .Values.global.hub }} {{ .Values.revision }}."}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	result, err := i.Inject(t.Context(), podOf(map[string]any{mesh.AnnotationTemplates: "own,see"}))
	if err != nil {
		t.Fatal(err)
	}
	if out := result.Object["metadata"].(map[string]any)["annotations"].(map[string]any)["out"]; out != "<no value> ." {
		t.Errorf("the second template reads %v", out)
	}
}

// TestTemplateEnds: a template ends with the request.
func TestTemplateEnds(t *testing.T) {
	t.Parallel()
	i, err := withTemplates(map[string]string{"own": "{{ range until 9999 }}{{ end }}"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := &injection{Injector: i, pod: &corev1.Pod{}, templateBudget: newTemplateBudget()}
	if _, err := i.templates["own"](ctx, p); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("%v", err)
	}
}

// FuzzCustomTemplate: every template is refused, or every pod gets it or an error.
func FuzzCustomTemplate(f *testing.F) {
	for _, seed := range [][2]string{
		{`metadata: {labels: {a: '{{ .ObjectMeta.Name }}'}}`, "a"},
		{"'{{ toYaml\n .Values }}'", "a"},
		{`"\x7b\x7b bad }}"`, "a"},
		{"{{ range $i, $c := .Spec.Containers }}spec: {containers: [{name: {{ $c.Name }}, env: [{name: A, value: {{ index $.ObjectMeta.Annotations `text` | quote }}}]}]}{{ end }}", "b: c\n- d"},
		{"{{ define `a` }}{{ template `a` . }}{{ end }}{{ range until 3 }}{{ template `a` }}{{ end }}", ""},
		{"metadata: {annotations: {out: {{ fromJSON .ObjectMeta.Annotations.text | toYaml | nindent 4 }}}}", `{"a": [1]}`},
		{"{{ repeat (atoi .ObjectMeta.Annotations.text) `x` | replace `x` `yy` | trunc 5 }}", "99999"},
		{"{{ .ObjectMeta.Annotations.text }}", "spec: {volumes: [{name: a, $patch: delete}], containers: null}"},
		{"{{ .ObjectMeta.Annotations.text }}", "&a [*a]"},
		{"{{ $a := dict }}{{ $b := set $a `a` $a }}{{ toJson $a }}{{ deepCopy $a }}", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, annotation string) {
		i, err := withTemplates(map[string]string{"own": text})
		if err != nil {
			return
		}
		for _, names := range []string{"own", "sidecar,own", "own,sidecar", "grpc-agent,own"} {
			_, _ = i.Inject(t.Context(), podOf(map[string]any{mesh.AnnotationTemplates: names, "text": annotation}))
		}
		compareWithText(t, i, text, annotation)
	})
}

// compareWithText compares the execution of a template with that of package text/template.
func compareWithText(t *testing.T, i *Injector, text, annotation string) {
	t.Helper()
	trees, err := parse.Parse(rootTemplate, text, "", "", templateFunctions())
	if err != nil {
		return
	}
	_, pod, err := decodePod(podOf(map[string]any{"text": annotation}).Object)
	if err != nil {
		return
	}
	p := &injection{Injector: i, pod: pod, proxy: defaultProxyConfig(), templateBudget: newTemplateBudget()}
	got, err := p.execute(t.Context(), trees)
	if err != nil {
		return // also where package text/template would run out of memory, or knows a method
	}
	functions := maps.Clone(template.FuncMap(templateFunctions()))
	for _, own := range []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len", "html", "urlquery"} {
		delete(functions, own)
	}
	for _, varies := range []string{"keys", "values"} { // in any order
		if strings.Contains(text, varies) {
			return
		}
	}
	data, err := p.templateData()
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	parsed, err := template.New(rootTemplate).Funcs(functions).Parse(text)
	if err == nil {
		err = parsed.Execute(&want, data)
	}
	if err != nil || want.String() != got {
		t.Errorf("%q is %q; text/template has %q, %v", text, got, want.String(), err)
	}
}

// TestExecutionAsText: templates do what package text/template does.
func TestExecutionAsText(t *testing.T) {
	t.Parallel()
	i, err := withTemplates(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"{{ if and .Spec.Containers (eq 1 1) }}a{{ else if true }}b{{ end }}{{ if or false nil }}c{{ else }}d{{ end }}{{ and 1 0 }}{{ or 0 `x` }}{{ or `` 0 }}",
		"{{ with $x := .ObjectMeta.Name }}{{ $x }}{{ . }}{{ end }}{{ with .Values.nothing }}a{{ else with `b` }}{{ . }}{{ else }}c{{ end }}",
		"{{ range $i, $c := .Spec.Containers }}{{ $i }}{{ $c.Name }}{{ range .Ports }}{{ .ContainerPort }}{{ end }}{{ else }}none{{ end }}",
		"{{ range $k, $v := .ObjectMeta.Labels }}{{ $k }}={{ $v }};{{ end }}{{ range $k, $v := dict `b` 1 `a` (list 1 2) }}{{ $k }}{{ $v }}{{ end }}",
		"{{ range 3 }}{{ . }}{{ end }}{{ range $i := 2 }}{{ $i }}{{ end }}{{ range .Values.nothing }}a{{ else }}b{{ end }}",
		"{{ $n := 0 }}{{ range until 9 }}{{ if eq . 2 }}{{ continue }}{{ end }}{{ if gt . 4 }}{{ break }}{{ end }}{{ $n = add $n . }}{{ end }}{{ $n }}",
		"{{ $x := 1 }}{{ if true }}{{ $x := 2 }}{{ $x = 3 }}{{ end }}{{ $x }}{{ $ }}",
		"{{ define `a` }}<{{ . }}{{ $ }}>{{ end }}{{ template `a` .ObjectMeta.Name }}{{ template `a` }}{{ block `b` 5 }}{{ . }}{{ end }}",
		"{{ .Spec.Containers }}{{ .ProxyConfig.InterceptionMode }}{{ .ProxyConfig.InterceptionMode.String }}{{ .ObjectMeta.CreationTimestamp }}{{ .Values }}",
		"{{ .ProxyConfig.GetTracing.GetTlsSettings.GetCaCertificates }}{{ .ProxyConfig.HoldApplicationUntilProxyStarts.GetValue }}{{ .ProxyConfig.GetDrainDuration.GetSeconds }}",
		"{{ .Values.a.b.c }}{{ .Values.global.multiCluster.clusterName }}{{ (index .Spec.Containers 0).Name }}{{ index .ObjectMeta.Labels `none` }}{{ index .ObjectMeta.Labels `app` }}",
		"{{ eq 1 2 1 }}{{ eq `a` `b` }}{{ ne 1 2 }}{{ lt 1 2 }}{{ le 2.5 2.5 }}{{ gt `b` `a` }}{{ ge 1 2 }}{{ not 0 }}{{ eq .Values.x nil }}{{ eq .Values.x `` }}",
		"{{ len `abc` }}{{ len .Spec.Containers }}{{ index (list 1 (list 2 3)) 1 0 }}{{ index `abc` 1 }}{{ printf `%v %q %5.2f` 1 `a` 2.5 }}{{ print 1 2 `a` `b` 3 }}{{ println }}",
		"{{ 1 }}{{ 1.5 }}{{ 1e3 }}{{ 'a' }}{{ 0x1F }}{{ true }}{{ `raw` }}{{ \"q\" | printf `%s-%s` `a` }}{{ 3 | add 4 | mul 2 }}{{- /* c */ -}}  x  {{- 1 }}",
		"{{ list nil 1 | first }}{{ dict `a` nil }}{{ ternary 1 2 true }}{{ default 5 nil }}{{ coalesce nil 0 `x` }}{{ round 2.345 1 }}{{ max 1 2 }}{{ float64 3 }}",
		"{{ (dict `a` (dict `b` 1)).a.b }}{{ $d := dict `k` `v` }}{{ $d.k }}{{ $s := set $d `n` 1 }}{{ $s }}{{ get $d `k` }}{{ hasKey $d `x` }}",
		"{{ .Spec.SecurityContext }}{{ with .Spec.SecurityContext }}a{{ else }}b{{ end }}{{ .Spec.HostNetwork }}{{ .Spec.TerminationGracePeriodSeconds }}{{ .ObjectMeta }}",
		"{{ html `<a>` }}{{ urlquery `a b` }}{{ .ObjectMeta.Annotations.text | quote }}{{ .ObjectMeta.Annotations.text | toJson }}",
	} {
		compareWithText(t, i, text, "a\n{{ b }}")
		p := &injection{Injector: i, pod: &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}}}, proxy: defaultProxyConfig(), templateBudget: newTemplateBudget()}
		trees, err := parse.Parse(rootTemplate, text, "", "", templateFunctions())
		if err == nil {
			_, err = p.execute(t.Context(), trees)
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
