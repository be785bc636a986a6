{{/*
The pod of a worker. Called with a dict:
  root, component (label), role, part (backend, gpus, args, env, resources, nodeSelector, tolerations, affinity),
  program, command (list: what runs the program, [] = the program itself), flags (list), kvCache (MB),
  claimed: the set has a claim called cache, joins: the worker registers at the gateway
*/}}
{{- define "tandem.workerPod" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $part := .part -}}
{{- $backend := default "cpu" $part.backend -}}
{{- $gpus := ternary 0 1 (eq $backend "cpu") -}}
{{- if hasKey $part "gpus" }}{{ $gpus = int $part.gpus }}{{ end -}}
{{- if and (eq $backend "cpu") (gt $gpus 0) -}}
{{- fail (printf "%s: gpus is %d, but backend is cpu" .component $gpus) -}}
{{- end -}}
{{- if and (ne $backend "cpu") (lt $gpus 1) -}}
{{- fail (printf "%s: backend %s needs gpus of at least 1" .component $backend) -}}
{{- end -}}
{{- $card := dict "cuda" "nvidia.com/gpu" "rocm" "amd.com/gpu" -}}
{{- $resources := deepCopy (default dict $part.resources) -}}
{{- if gt $gpus 0 -}}
{{- $limits := merge (dict (get $card $backend) (toString $gpus)) (default dict $resources.limits) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
metadata:
  labels:
    {{- include "tandem.labels" $root | nindent 4 }}
    app.kubernetes.io/component: worker
    tandem.dev/worker: {{ .component }}
    tandem.dev/job: tandem-{{ .role }}
spec:
  serviceAccountName: {{ include "tandem.name" $root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  # SIGTERM: no new work, running requests may end.
  terminationGracePeriodSeconds: 60
  securityContext:
    {{- include "tandem.podSecurity" $root | nindent 4 }}
    {{- if eq $backend "rocm" }}
    supplementalGroups: {{ toJson $v.rocmGroups }}
    {{- end }}
  {{- with $v.images.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with $part.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with $part.tolerations }}
  tolerations: {{ toJson . }}
  {{- end }}
  {{- with $part.affinity }}
  affinity: {{ toJson . }}
  {{- end }}
  containers:
    - name: worker
      image: {{ get $v.images $backend | quote }}
      imagePullPolicy: {{ $v.images.pullPolicy }}
      {{- $flags := concat (list
          "--supervise"
          (printf "--gateway=%s-registry.%s.svc:8104" (include "tandem.name" $root) $root.Release.Namespace)
          "--worker-id=$(POD_NAME)"
          "--listen=0.0.0.0:8105"
          "--cache-dir=/cache") .flags }}
      {{- /* Inside its container a card is number 0. */}}
      {{- $device := get (dict "cpu" "cpu" "cuda" "cuda:0" "rocm" "hip:0") $backend }}
      {{- $flags = append $flags (printf "--device=%s" $device) }}
      {{- if $v.join.plaintext }}
      {{- $flags = append $flags "--plaintext" }}
      {{- else }}
      {{- $flags = concat $flags (list "--certs=/cache/certs" "--join-token-file=/join/token") }}
      {{- end }}
      {{- if $v.metrics.workers }}{{ $flags = append $flags "--metrics-listen=0.0.0.0:9464" }}{{ end }}
      {{- with $v.otlpEndpoint }}{{ $flags = append $flags (printf "--otlp-endpoint=%s" .) }}{{ end }}
      {{- if gt (int .kvCache) 0 }}
      {{- $flags = append $flags "--kv-cache-dir=/cache/states" }}
      {{- $flags = append $flags (printf "--kv-cache-budget=%d" (int .kvCache)) }}
      {{- end }}
      {{- $flags = concat $flags (default list $part.args) }}
      command: {{ toJson (default (list .program) .command) }}
      args:
        {{- range $flags }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        {{- if eq $backend "cuda" }}
        - name: CUDA_CACHE_PATH
          value: /cache/cuda
        {{- end }}
        {{- if eq $backend "rocm" }}
        - name: HOME
          value: /tmp
        {{- end }}
        {{- with $part.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: worker
          containerPort: 8105
        {{- if $v.metrics.workers }}
        - name: metrics
          containerPort: 9464
        {{- end }}
      # The worker's supervisor replaces what hangs, so that nothing here needs to judge that.
      readinessProbe:
        exec:
          command: [{{ .program }}, health, --address, "127.0.0.1:8105"]
        periodSeconds: 5
        timeoutSeconds: 4
      {{- with $resources }}
      resources: {{ toJson . }}
      {{- end }}
      securityContext:
        {{- include "tandem.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - name: models
          mountPath: {{ $v.models.mountPath }}
          readOnly: true
        - name: cache
          mountPath: /cache
        - name: tmp
          mountPath: /tmp
        {{- if not $v.join.plaintext }}
        - name: join
          mountPath: /join
          readOnly: true
        {{- end }}
  volumes:
    - name: models
      persistentVolumeClaim:
        claimName: {{ include "tandem.modelsClaim" $root }}
        readOnly: true
    - name: tmp
      emptyDir: {}
    {{- if not .claimed }}
    - name: cache
      emptyDir: {}
    {{- end }}
    {{- if not $v.join.plaintext }}
    - name: join
      secret:
        secretName: {{ $v.join.secretName }}
        # It is made after the gateway has started: pods come up and wait for the token.
        optional: true
        defaultMode: 0440
    {{- end }}
{{- end -}}
