package istiojson

import (
	"encoding/json"
	"errors"
	"maps"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// OverlayProxyConfig replaces the fields of pc that a text, YAML or JSON, sets, and merges
// proxyMetadata, as Istio's injector and agent do. Fields that are null are not set. It returns the
// fields of the text.
func OverlayProxyConfig(opts protojson.UnmarshalOptions, pc *meshv1alpha1.ProxyConfig, text string) (map[string]any, error) {
	doc, err := yamldoc.ParseOnly([]byte(text)) // which bounds what its aliases expand to
	if err != nil {
		return nil, err
	}
	given, err := doc.JSON()
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(given, &fields); err != nil {
		return nil, errors.New("is not a mapping")
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
	if len(fields) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	config := &meshv1alpha1.ProxyConfig{}
	if err := Unmarshal(opts, data, config); err != nil {
		return nil, errors.New(Reason(err))
	}
	metadata := pc.GetProxyMetadata()
	from, to := config.ProtoReflect(), pc.ProtoReflect()
	for name := range fields {
		fd := FieldNamed(from.Descriptor(), name)
		if fd == nil {
			continue
		}
		if from.Has(fd) {
			to.Set(fd, from.Get(fd))
		} else { // given as zero
			to.Clear(fd)
		}
	}
	if own := config.GetProxyMetadata(); len(own) > 0 {
		pc.ProxyMetadata = make(map[string]string, len(metadata)+len(own))
		maps.Copy(pc.ProxyMetadata, metadata)
		maps.Copy(pc.ProxyMetadata, own)
	}
	return fields, nil
}
