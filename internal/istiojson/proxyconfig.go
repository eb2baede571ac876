package istiojson

import (
	"encoding/json"
	"errors"
	"maps"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"
)

// OverlayProxyConfig replaces the fields of pc that a text, YAML or JSON, sets, and merges
// proxyMetadata, as Istio's injector and agent do. Fields that are null are not set. It returns the
// fields of the text.
func OverlayProxyConfig(opts protojson.UnmarshalOptions, pc *meshv1alpha1.ProxyConfig, text string) (map[string]any, error) {
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
		return nil, err
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
	if len(fields) == 0 {
		return nil, nil
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	given := &meshv1alpha1.ProxyConfig{}
	if err := Unmarshal(opts, data, given); err != nil {
		return nil, errors.New(Reason(err))
	}
	metadata := pc.GetProxyMetadata()
	from, to := given.ProtoReflect(), pc.ProtoReflect()
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
	if own := given.GetProxyMetadata(); len(own) > 0 {
		pc.ProxyMetadata = make(map[string]string, len(metadata)+len(own))
		maps.Copy(pc.ProxyMetadata, metadata)
		maps.Copy(pc.ProxyMetadata, own)
	}
	return fields, nil
}
