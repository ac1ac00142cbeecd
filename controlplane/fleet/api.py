"""The fleet's JSON API under `/api/`: reading needs `fleet.view`, writing `fleet.operate`."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from django.core.exceptions import ValidationError
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, NotFound
from rest_framework.exceptions import ValidationError as ApiValidationError
from rest_framework.generics import ListAPIView
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts.authentication import Allowed
from controlplane.accounts.permissions import Action, Principal
from controlplane.fleet import selectors, services
from controlplane.fleet.errors import FleetError, UnknownDeployment
from controlplane.fleet.presentation import deployment_json, node_json, worker_json
from workers.protocol import Role
from workers.spec import EngineSettings


class ByName(CursorPagination):
    ordering = "name"
    page_size = 200


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class FleetView:
    """Shared by every view: who may, and the principal that `Allowed` found."""

    permission_classes: ClassVar[Any] = (Allowed,)
    read_action = Action.FLEET_VIEW
    write_action = Action.FLEET_OPERATE
    principal: Principal


class FleetList(FleetView, ListAPIView[Any]):
    pagination_class = ByName


class WorkerSerializer(serializers.BaseSerializer[Any]):
    def to_representation(self, instance: Any) -> dict[str, Any]:
        return worker_json(instance)


class NodeSerializer(serializers.BaseSerializer[Any]):
    def to_representation(self, instance: Any) -> dict[str, Any]:
        return node_json(instance)


class DeploymentSerializer(serializers.BaseSerializer[Any]):
    def to_representation(self, instance: Any) -> dict[str, Any]:
        return deployment_json(instance)


class WorkerList(FleetList):
    serializer_class = WorkerSerializer

    def get_queryset(self) -> Any:
        return selectors.workers()


class NodeList(FleetList):
    serializer_class = NodeSerializer

    def get_queryset(self) -> Any:
        return selectors.nodes()


class NewDeployment(serializers.Serializer[Any]):
    name = serializers.SlugField(max_length=40)
    model = serializers.CharField(max_length=200)
    aliases = serializers.ListField(child=serializers.CharField(max_length=200), default=list, max_length=50)
    prefill_replicas = serializers.IntegerField(min_value=0, default=1)
    decode_replicas = serializers.IntegerField(min_value=0, default=1)
    both_replicas = serializers.IntegerField(min_value=0, default=0)
    engine = serializers.DictField(default=dict)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class Scale(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=[role.value for role in Role])
    replicas = serializers.IntegerField(min_value=0)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


def _engine(value: dict[str, Any]) -> EngineSettings:
    try:
        return msgspec.convert(value, EngineSettings)
    except msgspec.ValidationError as error:
        raise ApiValidationError({"engine": str(error)}) from error


def _translated(error: FleetError | ValidationError) -> APIException:
    if isinstance(error, UnknownDeployment):
        return NotFound(str(error))
    if isinstance(error, ValidationError):
        return ApiValidationError(error.message_dict)
    return Conflict(str(error))


class DeploymentList(FleetList):
    serializer_class = DeploymentSerializer

    def get_queryset(self) -> Any:
        return selectors.deployments()

    def post(self, request: Request) -> Response:
        body = NewDeployment(data=request.data)
        body.is_valid(raise_exception=True)
        values = dict(body.validated_data)
        engine = _engine(values.pop("engine"))
        try:
            services.deployment_create(actor=self.principal, engine=engine, **values)
        except (FleetError, ValidationError) as error:
            raise _translated(error) from error
        created = selectors.deployment_by_name(values["name"])
        assert created is not None
        return Response(deployment_json(created), status=status.HTTP_201_CREATED)


class DeploymentDetail(FleetView, APIView):
    def get(self, request: Request, name: str) -> Response:
        deployment = selectors.deployment_by_name(name)
        if deployment is None:
            raise NotFound(f"there is no deployment {name}")
        return Response(deployment_json(deployment))

    def delete(self, request: Request, name: str) -> Response:
        try:
            services.deployment_delete(actor=self.principal, deployment=name)
        except FleetError as error:
            raise _translated(error) from error
        return Response(status=status.HTTP_202_ACCEPTED)


class DeploymentScale(FleetView, APIView):
    def post(self, request: Request, name: str) -> Response:
        body = Scale(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        try:
            services.deployment_scale(
                actor=self.principal,
                deployment=name,
                role=Role(values["role"]),
                replicas=values["replicas"],
                reason=values["reason"],
            )
        except FleetError as error:
            raise _translated(error) from error
        deployment = selectors.deployment_by_name(name)
        assert deployment is not None
        return Response(deployment_json(deployment))
