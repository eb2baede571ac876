#!/bin/bash
# A root and the CA of a cluster by openssl alone, in the steps, names and
# extensions that operators of Istio use: istio-cacerts.sh DIR CLUSTER DAYS
set -euo pipefail
mkdir -p "$1/$2" && cd "$1"
cluster=$2 days=$3
usage='keyUsage = critical, digitalSignature, nonRepudiation, keyEncipherment, keyCertSign'

cat > root-ca.conf <<CONF
[req]
encrypt_key = no
prompt = no
utf8 = yes
default_md = sha256
req_extensions = ext
distinguished_name = name
[ext]
subjectKeyIdentifier = hash
basicConstraints = critical, CA:true
$usage
[name]
O = Istio
CN = Root CA
CONF
openssl genrsa -out root-key.pem 4096
openssl req -sha256 -new -key root-key.pem -config root-ca.conf -out root-cert.csr
openssl x509 -req -sha256 -days "$days" -signkey root-key.pem \
  -extensions ext -extfile root-ca.conf -in root-cert.csr -out root-cert.pem

cat > "$cluster/intermediate.conf" <<CONF
[req]
encrypt_key = no
prompt = no
utf8 = yes
default_md = sha256
req_extensions = ext
distinguished_name = name
[ext]
subjectKeyIdentifier = hash
basicConstraints = critical, CA:true, pathlen:0
$usage
subjectAltName = @san
[san]
DNS.1 = istiod.istio-system.svc
[name]
O = Istio
CN = Intermediate CA
L = $cluster
CONF
openssl genrsa -out "$cluster/ca-key.pem" 4096
openssl req -sha256 -new -key "$cluster/ca-key.pem" -config "$cluster/intermediate.conf" -out "$cluster/cluster-ca.csr"
openssl x509 -req -sha256 -days "$days" -CA root-cert.pem -CAkey root-key.pem -CAcreateserial \
  -extensions ext -extfile "$cluster/intermediate.conf" -in "$cluster/cluster-ca.csr" -out "$cluster/ca-cert.pem"
cat "$cluster/ca-cert.pem" root-cert.pem > "$cluster/cert-chain.pem"
cp root-cert.pem "$cluster"
