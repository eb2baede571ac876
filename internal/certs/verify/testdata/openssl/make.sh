#!/bin/sh
# Makes the sets below with openssl 3: what crypto/x509 does not make, and a
# CA by the steps of Istio's Makefile. The tests judge them at the time in
# the file clock.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
date -u -d '+1 day' +%Y-%m-%dT%H:%M:%SZ > clock

ca_ext='basicConstraints=critical,CA:true
keyUsage=critical,digitalSignature,nonRepudiation,keyEncipherment,keyCertSign
subjectKeyIdentifier=hash'
intermediate_ext='basicConstraints=critical,CA:true,pathlen:0
keyUsage=critical,digitalSignature,nonRepudiation,keyEncipherment,keyCertSign
subjectKeyIdentifier=hash
subjectAltName=DNS:istiod.istio-system.svc'
leaf_ext='basicConstraints=CA:false
keyUsage=digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=critical,URI:spiffe://cluster.local/ns/default/sa/default'

key() { # file, bits
	openssl genrsa -out "$1" "$2" 2>/dev/null
}
root() { # directory, digest
	mkdir -p "$1"
	key "$work/root.key" 2048
	openssl req -new -sha256 -key "$work/root.key" -subj '/O=Istio/CN=Root CA' -out "$work/root.csr"
	printf '%s\n' "$ca_ext" > "$work/ext"
	openssl x509 -req "-$2" -days 3650 -signkey "$work/root.key" -in "$work/root.csr" -extfile "$work/ext" -out "$1/root-cert.pem" 2>/dev/null
}
intermediate() { # directory, digest, extensions
	key "$1/ca-key.pem" 2048
	openssl req -new -sha256 -key "$1/ca-key.pem" -subj '/O=Istio/CN=Intermediate CA/L=cluster1' -out "$work/ca.csr"
	printf '%s\n' "$3" > "$work/ext"
	openssl x509 -req "-$2" -days 3640 -CA "$1/root-cert.pem" -CAkey "$work/root.key" -set_serial "0x$(openssl rand -hex 8)" \
		-in "$work/ca.csr" ${3:+-extfile "$work/ext"} -out "$1/ca-cert.pem" 2>/dev/null
	cat "$1/ca-cert.pem" "$1/root-cert.pem" > "$1/cert-chain.pem"
}

root good sha256 && intermediate good sha256 "$intermediate_ext"
root sha1 sha256 && intermediate sha1 sha1 "$intermediate_ext"
root md5 sha256 && intermediate md5 md5 "$intermediate_ext"
root sha1-root sha1 && intermediate sha1-root sha256 "$intermediate_ext"
root version1 sha256 && intermediate version1 sha256 ''
root trusted sha256 && intermediate trusted sha256 "$intermediate_ext"
openssl x509 -in trusted/ca-cert.pem -trustout -addtrust serverAuth -out trusted/ca-cert.pem
root encrypted sha256 && intermediate encrypted sha256 "$intermediate_ext"
openssl pkcs8 -topk8 -v2 aes-256-cbc -passout pass:secret -in encrypted/ca-key.pem -out "$work/key" && mv "$work/key" encrypted/ca-key.pem
root encrypted-old sha256 && intermediate encrypted-old sha256 "$intermediate_ext"
openssl rsa -traditional -aes256 -passout pass:secret -in encrypted-old/ca-key.pem -out "$work/key" 2>/dev/null && mv "$work/key" encrypted-old/ca-key.pem
root text sha256 && intermediate text sha256 "$intermediate_ext"
openssl x509 -in text/ca-cert.pem -text -out text/ca-cert.pem
root traditional sha256 && intermediate traditional sha256 "$intermediate_ext"
openssl rsa -traditional -in traditional/ca-key.pem -out traditional/ca-key.pem 2>/dev/null

# Leaves with keys of other kinds.
root dsa sha256
openssl dsaparam -out "$work/dsa" 2048 2>/dev/null
openssl gendsa -out "$work/dsa.key" "$work/dsa" 2>/dev/null
openssl req -new -sha256 -key "$work/dsa.key" -subj / -out "$work/leaf.csr"
printf '%s\n' "$leaf_ext" > "$work/ext"
openssl x509 -req -sha256 -days 3600 -CA dsa/root-cert.pem -CAkey "$work/root.key" -set_serial 7 -in "$work/leaf.csr" -extfile "$work/ext" -out dsa/leaf.pem 2>/dev/null
root secp256k1 sha256
openssl ecparam -name secp256k1 -genkey -noout -out "$work/k1.key"
openssl req -new -sha256 -key "$work/k1.key" -subj / -out "$work/leaf.csr"
openssl x509 -req -sha256 -days 3600 -CA secp256k1/root-cert.pem -CAkey "$work/root.key" -set_serial 7 -in "$work/leaf.csr" -extfile "$work/ext" -out secp256k1/leaf.pem 2>/dev/null
