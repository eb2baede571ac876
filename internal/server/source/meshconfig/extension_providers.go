package meshconfig

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Bounds of access log settings, in bytes.
const (
	maxLogFile = 4 << 10
)

// checkAccessLog replaces invalid access log settings by their defaults, with a
// warning. Envoy would refuse all listeners for one wrong operator.
func (c *Reader) checkAccessLog(m *meshv1alpha1.MeshConfig, doc yamldoc.Value) {
	if err := checkLogFile(m.AccessLogFile); err != nil {
		c.warn(inText(keyMesh, doc, fields.Faultf("accessLogFile", "%w: there is no access log", err)))
		m.AccessLogFile = ""
	}
	check := fields.CheckTextFormat
	if m.AccessLogEncoding == meshv1alpha1.MeshConfig_JSON {
		check = checkJSONFormat
	}
	if err := check(m.AccessLogFormat); m.AccessLogFormat != "" && err != nil {
		c.warn(inText(keyMesh, doc, fields.Faultf("accessLogFormat", "%w: the default format is used", err)))
		m.AccessLogFormat = ""
	}
	var used []*meshv1alpha1.MeshConfig_ExtensionProvider
	for i, p := range m.ExtensionProviders {
		if fault := providerFault(fields.At("extensionProviders", i), p); fault != nil {
			if !c.Remote {
				c.warn(inText(keyMesh, doc, fault))
			}
			continue
		}
		used = append(used, p)
	}
	m.ExtensionProviders = used
}

// providerFault returns the reason why a provider is not used.
func providerFault(field string, p *meshv1alpha1.MeshConfig_ExtensionProvider) *fields.Error {
	if z := p.GetZipkin(); z != nil {
		return collectorFault(field+".zipkin", z, z.GetPath(), z.GetHeaders())
	}
	if o := p.GetOpentelemetry(); o != nil {
		return openTelemetryFault(field+".opentelemetry", o)
	}
	if otlp := p.GetEnvoyOtelAls(); otlp != nil {
		field += ".envoyOtelAls"
		if fault := collectorFault(field, otlp, "", nil); fault != nil {
			return fault
		}
		return logFormatFault(field, otlp.GetLogFormat().GetText(), otlp.GetLogFormat().GetLabels())
	}
	if fault, is := authorizerSettingsFault(field, p); is {
		return fault
	}
	if p.GetPrometheus() != nil {
		return nil
	}
	file := p.GetEnvoyFileAccessLog()
	if file == nil {
		return fields.WithoutEffect(field, whyUnused(p))
	}
	field += ".envoyFileAccessLog"
	if err := checkLogFile(file.GetPath()); err != nil {
		return fields.Faultf(field+".path", "%w: the provider is not used", err)
	}
	return logFormatFault(field, file.GetLogFormat().GetText(), file.GetLogFormat().GetLabels())
}

// whyUnused returns the reason why a provider is not used.
func whyUnused(p *meshv1alpha1.MeshConfig_ExtensionProvider) string {
	set := p.ProtoReflect().WhichOneof(p.ProtoReflect().Descriptor().Oneofs().ByName("provider"))
	for _, f := range Fields {
		if set != nil && f.Path == "extensionProviders."+set.JSONName() {
			return f.Meaning
		}
	}
	return "it has no provider"
}

// logFormatFault checks the format of a provider.
func logFormatFault(field, text string, labels *structpb.Struct) *fields.Error {
	err := fields.CheckTextFormat(text)
	if labels != nil && err == nil {
		err = fields.CheckFormats(structpb.NewStructValue(labels))
	}
	if err != nil {
		return fields.Faultf(field+".logFormat", "%w: the provider is not used", err)
	}
	return nil
}

func checkLogFile(path string) error {
	switch {
	case len(path) > maxLogFile:
		return fmt.Errorf("the path has %d bytes, at most %d are accepted", len(path), maxLogFile)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not a path", path)
	}
	return nil
}

func checkJSONFormat(format string) error {
	if len(format) > fields.MaxLogFormat {
		return fmt.Errorf("it has %d bytes, at most %d are accepted", len(format), fields.MaxLogFormat)
	}
	var object structpb.Struct
	if err := protojson.Unmarshal([]byte(format), &object); err != nil {
		return fmt.Errorf("it is not a JSON object, which accessLogEncoding JSON requires")
	}
	return fields.CheckFormats(structpb.NewStructValue(&object))
}
