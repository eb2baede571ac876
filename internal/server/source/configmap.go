package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/clustersettings"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/meshconfig"
)

var configMapKind = kubeKind(kind{
	name: "ConfigMap", kind: snapshot.KindConfigMap, plural: "configmaps", versions: v1,
	resources: []Resource{
		{Kind: snapshot.KindMeshSettings, Use: ForConfiguration, Object: mesh.MeshConfigMap, Without: "MeshConfig is not known"},
		{
			Kind: snapshot.KindClusterSettings, Use: ForConfiguration, Object: clustersettings.ConfigMap,
			Without: "no cluster is drained or weighed",
		},
		{
			Kind: snapshot.KindInjectorSettings, Use: ForConfiguration, Object: mesh.InjectorConfigMap, Optional: true,
			Without: "pods are injected with default settings",
		},
		{
			Use: ForCredentials, OwnOnly: true, Optional: true,
			Without: "proxies are given no CA certificates of ConfigMaps",
		},
	},
}, (*conversion).configMap)

// IsCAKey reports whether Convert reads the key of a ConfigMap for CA certificates.
func IsCAKey(key string) bool {
	return key == keyCACert || key == keyTLSCACert || key == keyCRL || key == keyTLSCRL
}

// caConfigMap delivers ConfigMaps with CA certificates. It delivers nothing of other
// ConfigMaps, which may change often.
func (c *conversion) caConfigMap(o *corev1.ConfigMap) *fields.Error {
	_, generic := o.Data[keyCACert]
	_, tls := o.Data[keyTLSCACert]
	if !generic && !tls {
		return nil
	}
	data, size := make(map[string][]byte), 0
	for key, value := range o.Data {
		if IsCAKey(key) {
			data[key] = []byte(value)
			size += len(value)
		}
	}
	if size > maxSecret {
		return fields.Faultf("data", "has %d bytes of certificates, at most %d are used", size, maxSecret)
	}
	m := &snapshot.ConfigMap{Meta: c.meta}
	var fault *fields.Error
	m.CA, m.NoCA, fault = caBundle("configmap", data, dataField)
	if fault != nil {
		return fault
	}
	c.object = m
	return nil
}

func (c *conversion) clusterSettings(o *corev1.ConfigMap) *fields.Error {
	settings, err := clustersettings.Parse(o.Data[clustersettings.Key])
	if err != nil {
		return &fields.Error{Field: "data" + fields.FieldOf(clustersettings.Key), Err: err}
	}
	c.object = &snapshot.ClusterSettings{Meta: c.meta, Clusters: settings}
	return nil
}

func (c *conversion) configMap(o *corev1.ConfigMap) *fields.Error {
	switch c.deliveredKind(snapshot.KindConfigMap, c.meta.Namespace, c.meta.Name) {
	case snapshot.KindMeshSettings:
	case snapshot.KindClusterSettings:
		return c.clusterSettings(o)
	case snapshot.KindInjectorSettings:
		c.object = &snapshot.InjectorSettings{Meta: c.meta, Values: o.Data[mesh.InjectorKeyValues], Config: o.Data[mesh.InjectorKeyConfig]}
		return nil
	default:
		return c.caConfigMap(o)
	}
	r := meshconfig.Reader{Remote: c.Remote, RefusedGateway: c.refusedGateway}
	m, networks, fault := r.Read(o.Data)
	for _, w := range r.Warnings {
		c.warn(w)
	}
	if fault != nil {
		return fault
	}
	c.object = &snapshot.MeshSettings{Meta: c.meta, Mesh: m, Networks: networks}
	return nil
}
